"""`Backend(...)`: validation, secrets that are never shown, and the model and limits that a run takes from it."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from batch_agent import Backend, BatchSpec, SpecError
from batch_agent.core.options.backend_settings import backend_from_table

KEY = "sk-live-0123456789abcdef"


def spec(**options: Any) -> BatchSpec:
    return BatchSpec.of(task="Say {x}", inputs=[{"x": 1}], **options)


def test_a_key_is_not_in_the_repr_of_a_backend_or_of_a_run() -> None:
    backend = Backend("openai://", api_key=KEY, headers={"X-Gateway": KEY, "X-Title": "reviews"})
    assert repr(backend) == "Backend('openai://', api_key='***', headers={'X-Gateway': '***', 'X-Title': 'reviews'})"
    assert KEY not in repr(spec(backend=[backend]))
    assert "${GROQ_KEY}" in repr(Backend("groq://", api_key="${GROQ_KEY}"))


def test_passwords_in_a_url_are_not_in_the_repr() -> None:
    assert "secret-pw" not in repr(Backend("http://me:secret-pw@host/v1"))
    assert "secret-pw" not in repr(Backend("openai://", base_url="https://me:secret-pw@host/v1?sig=secret-pw"))


def test_a_key_that_is_a_value_does_not_leave_the_process() -> None:
    for backend in (Backend("openai://", api_key=KEY), Backend("vllm://h:1", headers={"X-Token": KEY})):
        with pytest.raises(SpecError, match="is not sent to other processes") as refused:
            pickle.dumps(backend)
        assert KEY not in str(refused.value)
        with pytest.raises(SpecError, match="is not sent to other processes"):
            backend.to_table()


def test_the_name_of_a_variable_is_sent_instead() -> None:
    backend = Backend("groq://", api_key="${GROQ_KEY}", headers={"X-Token": "Bearer ${GATEWAY}", "X-Title": "reviews"})
    assert pickle.loads(pickle.dumps(backend)) == backend
    assert backend.variables == ("GROQ_KEY", "GATEWAY")
    assert backend_from_table("groq", backend.to_table()) == backend


def test_a_backend_can_be_copied_hashed_and_not_changed() -> None:
    backend = Backend("openai://", api_key=KEY, headers={"X-A": "b"})
    assert copy.deepcopy(backend) is backend
    assert {backend: 1}[replace(backend)] == 1
    assert backend != replace(backend, api_key=KEY + "2")
    with pytest.raises(FrozenInstanceError):
        backend.api_key = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_key": ""}, "api_key is empty"),
        ({"api_key": 3}, "got a int"),
        ({"api_key": "two\nlines"}, "line break"),
        ({"api_key": "“quoted”"}, "cannot be sent in a header"),
        ({"api_key": "key-${NAME}"}, "as in '${GROQ_API_KEY}'"),
        ({"headers": "X-A: b"}, "must be a dict"),
        ({"headers": {"X A": "b"}}, "not a valid name"),
        ({"headers": {"Host": "b"}}, "is set by the client"),
        ({"headers": {"X-A": "b\r\nX-B: c"}}, "line break"),
        ({"headers": {"X-A": 3}}, "must be a string"),
        ({"base_url": "proxy:8080"}, "begins with http"),
        ({"base_url": "http://proxy", "url": "openai://host"}, "both name a server"),
        ({"model": ""}, "model is empty"),
        ({"rpm": 0}, "rpm must be"),
        ({"url": 3}, "url must be a URL"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        Backend(**{"url": "openai://", **settings})
    assert words in str(refused.value)


@pytest.mark.parametrize("url", [f"openai://{KEY}", f"groq://gsk_{KEY}@host/v1", "gemini://AIzaSyA0123456789abcdef"])
def test_a_key_in_place_of_a_host_is_refused_and_not_shown(url: str) -> None:
    for use in (Backend, lambda given: spec(backend=given), lambda given: spec(backend=[given, "openai://"])):
        with pytest.raises(SpecError, match="has an API key in the URL") as refused:
            use(url)
        assert "0123456789abcdef" not in str(refused.value)


def test_the_run_takes_model_and_limits_of_its_backend() -> None:
    made = spec(backend=Backend("openai://", model="gpt-5-mini", rpm=300, tpm=90_000, max_inflight=8), rpm=100)
    assert (made.model, made.limits.rpm, made.limits.tpm, made.limits.max_inflight) == ("gpt-5-mini", 100, 90_000, 8)
    assert replace(made, lane="flex").limits == made.limits


def test_the_limits_of_endpoints_add_up() -> None:
    two = [Backend("openai://", api_key=KEY, rpm=100), Backend("openai://", api_key=KEY + "2", rpm=50)]
    assert spec(backend=two, model="m").limits.rpm == 150
    with pytest.raises(SpecError, match="Only some of the endpoints have rpm="):
        spec(backend=[two[0], "vllm://gpu1:8000"], model="m")


def test_a_backend_and_a_run_with_different_models_are_refused() -> None:
    with pytest.raises(SpecError, match="name different models"):
        spec(backend=Backend("openai://", model="a"), model="b")
    with pytest.raises(SpecError, match="name different models"):
        spec(backend=[Backend("vllm://a:1", model="a"), Backend("vllm://b:1", model="b")])


def test_a_table_of_a_file_becomes_a_backend() -> None:
    table = {"url": "azure://my-resource", "api-version": "2024-10-21", "api_key": "${AZURE_KEY}", "rpm": 60}
    made = backend_from_table("prod", table)
    assert made == Backend("azure://my-resource", api_version="2024-10-21", api_key="${AZURE_KEY}", rpm=60)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"api_key": "${A}"}, "backends.prod: url is missing"),
        ({"url": "openai://", "api_kay": "${A}"}, "Did you mean 'api_key'"),
        ({"url": "openai://", "api_key": KEY}, "must not be in a file"),
        ({"url": "openai://", "headers": {"X-Token": KEY}}, "headers['X-Token'] is a secret"),
        ({"url": "openai://", "rpm": -1}, "backends.prod: rpm must be"),
    ],
)
def test_a_table_with_a_mistake_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        backend_from_table("prod", table)
    assert words in str(refused.value)
    assert KEY not in str(refused.value)
