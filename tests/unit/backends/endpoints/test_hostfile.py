"""Which endpoints a hostfile names, and what is said of a file that cannot be read."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from batch_agent import SpecError
from batch_agent.backends.endpoints.endpoint_identity import backend_url, check_distinct
from batch_agent.backends.endpoints.hostfile import Endpoint, parse_hostfile


def one(line: str) -> Endpoint:
    (endpoint,) = parse_hostfile([line])
    return endpoint


def refused(*lines: str) -> str:
    with pytest.raises(SpecError) as raised:
        parse_hostfile(lines)
    return str(raised.value)


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("gpu1:8001", "http://gpu1:8001"),
        ("gpu1", "http://gpu1:8000"),
        ("gpu1.cluster.local:1", "http://gpu1.cluster.local:1"),
        ("x4102c5s2b0n0-hsn0.hostmgmt2102.cm:65535", "http://x4102c5s2b0n0-hsn0.hostmgmt2102.cm:65535"),
        ("model_server", "http://model_server:8000"),
        ("10.0.0.7:8001", "http://10.0.0.7:8001"),
        ("[::1]:8001", "http://[::1]:8001"),
        ("[2001:DB8:0:0::1]", "http://[2001:db8::1]:8000"),
        ("gpu1\t8001", "http://gpu1:8001"),
        ("gpu1   8001", "http://gpu1:8001"),
        ("[::1] 8001", "http://[::1]:8001"),
        ("http://gpu1:8001", "http://gpu1:8001"),
        ("http://gpu1:8001/", "http://gpu1:8001"),
        ("https://gateway:8443/a/b/", "https://gateway:8443/a/b"),
        ("HTTPS://gateway", "https://gateway:443"),
        ("http://gateway/v1", "http://gateway:80/v1"),
        ("http://gateway 8001", "http://gateway:8001"),
        ("http://[::1]:8001/v1", "http://[::1]:8001/v1"),
    ],
)
def test_addresses_are_parsed(line: str, url: str) -> None:
    assert one(line).url == url


def test_an_ipv6_host_is_kept_without_its_brackets() -> None:
    assert (one("[::1]:8001").host, one("[::1]:8001").port) == ("::1", 8001)


@pytest.mark.parametrize(
    "line",
    [
        "gpu1:8001\trole=worker\tbig\tgpu=a100",
        "gpu1:8001 big   role=worker gpu=a100",
        "gpu1\t8001\trole=worker\tgpu=a100\tbig",
        "  gpu1:8001 role=worker gpu=a100 big big\r\n",
        "gpu1:8001 role=worker gpu=a100 big # not=this nor that",
        "\ufeffgpu1:8001 role=worker gpu=a100 big",
    ],
)
def test_fields_and_tags_follow_the_address(line: str) -> None:
    endpoint = one(line)
    assert (endpoint.host, endpoint.port) == ("gpu1", 8001)
    assert endpoint.tags == {"big"}
    assert endpoint.fields == {"role": "worker", "gpu": "a100"}


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": ""}),
        ("color=#fff", {"color": "#fff"}),
        ("peer=gpu2:8000", {"peer": "gpu2:8000"}),
        ("n=4", {"n": "4"}),
    ],
)
def test_a_value_is_all_that_follows_the_first_equals_sign(word: str, fields: dict[str, str]) -> None:
    assert one(f"gpu1 {word}").fields == fields


@pytest.mark.parametrize("tag", ["rack:b", "a#b", "v1.2", "größe"])
def test_a_tag_is_any_word(tag: str) -> None:
    assert one(f"gpu1 {tag}").tags == {tag}


def test_an_endpoint_has_its_tags_and_fields() -> None:
    endpoint = one("gpu1 big role=worker empty=")
    assert [tag for tag in ("big", "role=worker", "empty=") if not endpoint.has(tag)] == []
    assert [tag for tag in ("small", "role", "role=", "role=work", "worker", "other=", "") if endpoint.has(tag)] == []


def test_the_repr_of_an_endpoint_has_its_address_and_tags() -> None:
    assert str(one("gpu1:8001 z role=worker a")) == "http://gpu1:8001 role=worker a z"
    assert str(one("[::1]")) == "http://[::1]:8000"


def test_the_text_of_an_endpoint_is_a_line_of_a_hostfile() -> None:
    endpoint = one("https://gateway/base role=worker big")
    assert one(str(endpoint)) == endpoint


def test_an_endpoint_is_immutable() -> None:
    said = {"role": "worker"}
    endpoint: Any = Endpoint("gpu1", fields=said)
    said["role"] = "other"
    with pytest.raises(FrozenInstanceError):
        endpoint.port = 1
    with pytest.raises(TypeError):
        endpoint.fields["role"] = "other"
    assert endpoint.has("role=worker")


def test_endpoints_are_comparable_and_hashable() -> None:
    first, same, other = one("gpu1 a=b c"), one("gpu1:8000 c a=b"), one("gpu1 a=c c")
    assert first == same
    assert first != other
    assert len({first, same, other}) == 2
    assert replace(first, port=1).fields == first.fields


def test_a_file_is_read_in_its_order_without_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes(
        b"\xef\xbb\xbf# all of them\r\n\r\ngpu2:8000\r\n   \t\r\n  # one more\r\ngpu1 # the first\r\n[::1] big"
    )
    expected = [Endpoint("gpu2"), Endpoint("gpu1"), Endpoint("::1", tags=frozenset({"big"}))]
    assert parse_hostfile(path) == expected
    assert parse_hostfile(str(path)) == expected


def test_a_hostfile_may_be_parsed_from_any_lines() -> None:
    assert parse_hostfile(f"gpu{number}\n" for number in range(3)) == [Endpoint(f"gpu{number}") for number in range(3)]


@pytest.mark.parametrize("same", ["gpu1:8000", "GPU1", "http://gpu1:8000/", "gpu1\t8000\trole=other"])
def test_a_repeated_endpoint_is_an_error(same: str) -> None:
    message = refused("# hosts", "gpu1:8000 role=worker", "gpu2", same)
    assert "has 1 invalid line:" in message
    assert "line 4: " in message
    assert "http://" in message
    assert "is already in line 2" in message


def test_one_host_may_serve_at_several_ports_and_paths() -> None:
    lines = ["gpu1:8000", "gpu1:8001", "http://gpu1:8000/a", "http://gpu1:8000/b"]
    assert len(parse_hostfile(lines)) == 4


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("gpu1:", "'' is not a port"),
        ("gpu1:abc", "'abc' is not a port"),
        ("gpu1:0", "from 1 to 65535"),
        ("gpu1:65536", "from 1 to 65535"),
        ("gpu1:0000899999", "from 1 to 65535"),
        ("gpu1:-1", "'-1' is not a port"),
        ("gpu1:８０００", "is not a port"),
        ("gpu1\t99999", "'99999' is not a port"),
        ("gpu1\t-1", "'-1' is not a port"),
        ("gpu1:8000 8001", "two ports"),
        ("gpu1:8000#first", "put a space before the '#'"),
        (":8000", "the host is empty"),
        ("http://:8000", "the host is empty"),
        ("http:///base", "the host is empty"),
        ("[]:8000", "'' is not an IPv6 address"),
        ("8000", "port without a host"),
        ("gpu 1:8000", "a host has no spaces"),
        ("http://gpu 1:8000/v1", "a host has no spaces"),
        ("gpu1:8000 gpu2:8000", "a line has one endpoint"),
        ("gpu1 http://gpu2", "a line has one endpoint"),
        ("gpu1,8000", "'gpu1,8000' is not a valid host"),
        ("gpu1/v1", "is not a valid host"),
        ("-gpu1", "is not a valid host"),
        ('"gpu1":8000', "is not a valid host"),
        ("role=worker gpu1", "the address must come before"),
        ("::1", "an IPv6 address is written as in '[::1]:8000'"),
        ("gpu1:8000:1", "more than one ':'"),
        ("[::1", "an IPv6 address is written as in '[::1]:8000'"),
        ("[::1]8000", "an IPv6 address is written as in '[::1]:8000'"),
        ("[10.0.0.1]:8000", "'10.0.0.1' is not an IPv6 address"),
        ("ftp://gpu1", "unknown scheme 'ftp'; use one of http, https, vllm"),
        ("http://gpu1/v1?key=a", "'?'"),
        ("http://gpu1?key=a", "'?'"),
        ("gpu1 =worker", "no key before its '='"),
        ("gpu1 role=a role=b", "'role' is repeated"),
    ],
)
def test_an_invalid_hostfile_line_is_an_error(line: str, what: str) -> None:
    message = refused("fine", line)
    assert f"line 2: {line!r}: " in message
    assert what in message


def test_all_invalid_lines_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("gpu1:abc  # bad\n\ngpu2\n:8000\ngpu2:8000\n")
    with pytest.raises(SpecError) as raised:
        parse_hostfile(path)
    assert str(raised.value).splitlines() == [
        f"The hostfile {str(path)!r} has 3 invalid lines:",
        "  line 1: 'gpu1:abc': 'abc' is not a port: use a number from 1 to 65535",
        "  line 4: ':8000': the host is empty",
        "  line 5: 'gpu2:8000': http://gpu2:8000 is already in line 3",
    ]


def test_a_password_is_not_shown_in_the_error() -> None:
    message = refused("http://me:secret@gpu1:8000")
    assert "secret" not in message
    assert "line 1: 'http://***@gpu1:8000'" in message


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing yet\n", "\ufeff"])
def test_an_empty_hostfile_is_an_error_with_an_example(tmp_path: Path, content: str) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=r"lists no endpoints.*one endpoint per line(?s:.*)gpu1:8000"):
        parse_hostfile(path)
    assert "lists no endpoints" in refused(*content.splitlines())


def test_a_missing_hostfile_is_an_error_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"The hostfile .*none\.txt.* does not exist.*one endpoint per line"):
        parse_hostfile(str(tmp_path / "none.txt"))


def test_a_binary_hostfile_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        parse_hostfile(tmp_path)
    binary = tmp_path / "hosts.bin"
    binary.write_bytes(b"\xff\xfeg\x00")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        parse_hostfile(binary)


def test_the_example_in_the_error_messages_is_a_valid_hostfile() -> None:
    example = refused().partition("as in\n")[2]
    assert [str(endpoint) for endpoint in parse_hostfile(example.splitlines())] == [
        "http://gpu1:8000",
        "http://gpu2:8000 role=worker big",
        "https://gateway:8443/base",
    ]


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("vllm://gpu1:8000", "vllm://gpu1:8000"),
        ("vllm://gpu1", "vllm://gpu1:8000"),
        ("sglang://gpu1:30001/base", "sglang://gpu1:30001/base"),
        ("dynamo://gpu1:8080  role=worker", "dynamo://gpu1:8080"),
        ("openai://127.0.0.1:9000", "openai://127.0.0.1:9000"),
        ("ANTHROPIC://127.0.0.1:9000", "anthropic://127.0.0.1:9000"),
    ],
)
def test_an_address_may_have_the_scheme_of_a_flavor(line: str, url: str) -> None:
    endpoint = one(line)
    assert endpoint.url == url
    assert check_distinct([backend_url(endpoint)]) == [url]


def test_a_bedrock_url_is_rejected_in_a_hostfile() -> None:
    assert "unknown scheme 'bedrock'" in refused("bedrock://us-east-1/model")


@pytest.mark.parametrize(
    ("line", "fields", "tags"),
    [
        ("gpu1:8000\trole=night worker\tbig", {"role": "night worker"}, {"big"}),
        ("gpu1:8000\trole=worker  big", {"role": "worker"}, {"big"}),
        ("gpu1:8000\ta=1 b=2", {"a": "1", "b": "2"}, set()),
        ("gpu1 8000\tname=rack 4, left\t# the old one", {"name": "rack 4, left"}, set()),
        ("gpu1:8000\tbig fast", {}, {"big", "fast"}),
        ("gpu1:8000 role=worker big", {"role": "worker"}, {"big"}),
    ],
)
def test_in_a_tab_separated_line_values_may_have_spaces(line: str, fields: dict[str, str], tags: set[str]) -> None:
    endpoint = one(line)
    assert (dict(endpoint.fields), endpoint.tags, endpoint.port) == (fields, tags, 8000)
    assert one(str(endpoint)) == endpoint


def test_tags_given_as_a_mapping_are_fields() -> None:
    endpoint = Endpoint("gpu1", 8000, tags={"role": "worker"})
    assert endpoint.has("role=worker")
    assert (dict(endpoint.fields), endpoint.tags) == ({"role": "worker"}, frozenset())
    assert endpoint == Endpoint("gpu1", 8000, fields={"role": "worker"})
    assert len({endpoint, Endpoint("gpu1", 8000, tags=["a"]), Endpoint("gpu1", 8000, tags={"a"})}) == 2


def test_tags_given_as_one_string_are_rejected() -> None:
    with pytest.raises(SpecError, match="is a string"):
        Endpoint("gpu1", 8000, tags="worker")
