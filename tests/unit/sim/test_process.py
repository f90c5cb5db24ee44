import json
import os
import subprocess
import sys
import time

import pytest

from batch_agent.sim import FaultRates, Script, SimConfig, SimServer
from batch_agent.sim.process import Launch

from .conftest import Send


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_launch_survives_its_command_line() -> None:
    launch = Launch(SimConfig(num_blocks=7, faults=FaultRates(reset=0.5)), Script(keys=3), port=99)
    assert Launch.from_json(launch.to_json()) == launch
    assert Launch.from_json("{}") == Launch()


def test_config_and_script_reach_the_server(send: Send) -> None:
    with SimServer(SimConfig(zero_latency=True, model="mine"), Script(answer_tokens=5)) as sim:
        body = send(sim, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}).json()
    assert (body["model"], body["usage"]["completion_tokens"]) == ("mine", 5)


def test_the_server_is_gone_after_the_block_and_stopping_twice_is_fine() -> None:
    with SimServer(SimConfig(zero_latency=True)) as sim:
        pid = sim.pid
        assert sim.cpu_seconds() > 0
    assert not is_alive(pid)
    sim.stop()


def test_a_server_that_cannot_start_says_so() -> None:
    with SimServer(SimConfig(zero_latency=True)) as sim, pytest.raises(RuntimeError, match="did not start"):
        SimServer(port=sim.port).start()


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at /proc")
def test_the_server_dies_with_the_process_that_started_it() -> None:
    program = (
        "import os; from batch_agent.sim import SimServer; print(SimServer().start().pid, flush=True); os._exit(1)"
    )
    pid = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).stdout)
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_numbers_that_make_no_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        SimConfig(num_blocks=0)
    with pytest.raises(ValueError, match="policy"):
        SimConfig(policy="random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keys"):
        Script(keys=0)
    assert SimConfig(num_blocks=4, block_size=16, max_model_len=1000).context_tokens == 64


def test_a_number_no_engine_has_is_refused() -> None:
    with pytest.raises(TypeError, match="blocks"):
        Launch.from_json(json.dumps({"config": {"blocks": 3}}))
