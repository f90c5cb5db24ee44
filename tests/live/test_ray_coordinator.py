"""The coordinator contract on a Ray actor, and what happens when actors fail."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tests.contract.test_coordinator_calls
import tests.contract.test_coordinator_documents
import tests.contract.test_coordinator_facts
import tests.contract.test_coordinator_work
import tests.contract.test_shared_kv_cache
from tests.contract.coordinator_contract import LONG, STARTED, Meet, by_key, coordinator, jobs, leased
from tests.live.ray_cluster import ray_cluster

from batch_agent.core.coordinator import Append, Completion, Coordinator, End
from batch_agent.core.errors import SpecError, StoreError
from batch_agent.ray.coordinator_actor import CoordinatorActor

__all__ = ["coordinator"]

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves the files of its logs open

for suite in (
    tests.contract.test_coordinator_documents,
    tests.contract.test_coordinator_work,
    tests.contract.test_coordinator_calls,
    tests.contract.test_coordinator_facts,
    tests.contract.test_shared_kv_cache,
):
    globals().update({name: test for name, test in vars(suite).items() if name.startswith("test_")})


class OneAfterTheOther(CoordinatorActor):
    """A coordinator for each test in one actor: starting an actor takes longer than most of the tests."""

    called = 0

    async def call_method(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.called += 1
        return await super().call_method(method, args, options)

    async def calls(self) -> int:
        return self.called

    async def begin(self, checkpoint_dir: str) -> None:
        await self.close()
        self.__init__(checkpoint_dir)  # type: ignore[misc]
        await self.open(None)


async def opened(actor: Any, rank: str | None = None) -> Coordinator:
    from batch_agent.ray.ray_coordinator import RayCoordinator  # Ray may be missing where only other tests are run

    async def find() -> Any:
        return actor

    coordinator = RayCoordinator(find, rank)
    await coordinator.open()
    return coordinator


@pytest.fixture(scope="module")
def actor() -> Iterator[Any]:
    import ray

    with ray_cluster(nodes=1) as cluster:
        ray.init(address=cluster.address, log_to_driver=False)
        yield ray.remote(OneAfterTheOther).options(num_cpus=0, max_concurrency=1000).remote(None)
        ray.shutdown()


@pytest.fixture
async def meet(actor: Any, tmp_path: Path) -> Meet:
    async def one() -> Coordinator:
        return await opened(actor)

    await actor.begin.remote(str(tmp_path / "run"))
    return one


async def test_the_leases_of_a_replaced_worker_are_released(actor: Any, meet: Meet) -> None:
    first, second, other = await opened(actor, "1"), await opened(actor, "1"), await meet()
    await first.work.renew("before", {}, ttl=LONG)
    held = await leased(first, "before", "a", "b")
    await first.work.renew("before", {key: lease.token for key, lease in held.items()}, ttl=LONG)
    assert await other.work.lease("other", 2, ttl=LONG, wait=0) == []
    await second.work.renew("after", {}, ttl=LONG)
    assert by_key(await other.work.lease("other", 2, ttl=LONG, wait=0)).keys() == {"a", "b"}
    lost = await first.work.renew("before", {key: lease.token for key, lease in held.items()}, ttl=LONG)
    assert lost == {"a", "b"}


async def test_a_worker_is_notified_of_tool_calls_and_submitters_but_not_of_other_workers(
    actor: Any, meet: Meet
) -> None:
    caller, one, other = await meet(), await opened(actor, "1"), await opened(actor, "2")
    since = await caller.updates.position()
    lease = (await leased(caller, "other", "a"))["a"]
    await other.updates.publish(b"I am busy")
    await other.facts.write("other", 1, [Append("a", lease.token, STARTED), End(lease.token, Completion("a"))])
    quiet = await one.updates.poll(since, wait=0)
    assert (quiet.completions, quiet.completed_calls, quiet.published) == ((), (), ())
    waiting = asyncio.create_task(one.updates.poll(quiet.after, wait=LONG))
    await caller.updates.publish(b"Is anybody there?")
    assert (await waiting).published == (b"Is anybody there?",)
    heard = await caller.updates.poll(since, wait=0)
    assert heard.published == (b"I am busy", b"Is anybody there?")
    assert [ending.key for ending in heard.completions] == ["a"]
    before = await actor.calls.remote()
    assert await caller.facts.read("a") == (STARTED,)
    assert await actor.calls.remote() == before, "facts come with the news"
    assert await caller.facts.read("a") == (STARTED,)


async def test_a_cancelled_waiter_gets_no_work(meet: Meet) -> None:
    gone, other = await meet(), await meet()
    waiting = asyncio.create_task(gone.work.lease("gone", 1, ttl=LONG, wait=LONG))
    await other.work.pending_count()
    waiting.cancel()
    await asyncio.wait([waiting])
    await other.work.pending_count()
    await other.work.submit(jobs("a"), retry_failed=False)
    assert by_key(await other.work.lease("other", 1, ttl=LONG, wait=LONG)).keys() == {"a"}


async def test_a_checkpoint_folder_missing_on_the_node_is_refused(actor: Any, tmp_path: Path) -> None:
    from ray.exceptions import RayTaskError

    with pytest.raises(RayTaskError) as told:
        await actor.open.remote(str(tmp_path / "not" / "there"))
    assert isinstance(told.value.cause, SpecError)


@pytest.mark.usefixtures("actor")
async def test_a_lost_coordinator_is_an_error_that_says_how_to_resume() -> None:
    import ray

    actor = ray.remote(CoordinatorActor).options(num_cpus=0).remote(None)
    coordinator = await opened(actor)
    assert await coordinator.work.pending_count() == 0
    waiting = asyncio.create_task(coordinator.work.lease("worker", 1, ttl=LONG, wait=LONG))
    await coordinator.work.pending_count()
    ray.kill(actor)
    for asked in (waiting, coordinator.work.pending_count()):
        with pytest.raises(StoreError, match="Run again, with the same checkpoint_dir"):
            await asked
