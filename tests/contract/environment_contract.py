"""What every `ContainerEnv` promises, as tests to run against a real one.

Subclass `EnvironmentContract` in a test module and override the fixture `env_builder`; the class
attributes say what the environment can do. The image needs bash, coreutils and util-linux
(`flock`, `setsid`).

That a command's processes are dead is shown without looking at pids, which differ inside: the
command takes a lock on a file, its children inherit the open file, and the lock can be had again
only when the last of them is gone.
"""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from agentflow.errors import CommandFailed, EnvDied
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.protocols import ContainerEnv, ContainerEnvBuilder
    from agentflow.types import CommandResult

HOLD = "exec 9>>alive; flock -n 9 || exit 99; "
"""Begins a command whose processes are to be watched."""

FOREVER_S = 1000
"""How long a child sleeps that must not live to see the end of it."""


async def assert_dead(env: ContainerEnv) -> None:
    """Fail if a process of a command that began with HOLD is alive."""
    result = await env.execute("flock -n alive true")
    assert result.exit_code == 0, "a process outlived its command"


async def until_deadline(env: ContainerEnv, command: str, *, printed: bytes) -> CommandResult:
    """Run into a deadline that comes after `printed`, on a busy machine as well."""
    for timeout_s in (0.3, 3.0):
        result = await env.execute(command, timeout_s=timeout_s)
        if printed in result.output:
            return result
    return await env.execute(command, timeout_s=20)


async def until_there(env: ContainerEnv, path: str) -> None:
    """Wait until a command under way has made a file."""
    result = await env.execute(f"until test -e {path}; do sleep 0.01; done", timeout_s=20)
    assert not result.timed_out, f"{path} never appeared"


class EnvironmentContract:
    """The promises, a test each."""

    limits_pids: bool = False
    """Whether a fork bomb meets a limit."""

    side_by_side: bool = True
    """Whether a command can run while another one does."""

    big_output_bytes: int = int(os.environ.get("AGENTFLOW_TEST_OUTPUT_BYTES", str(1 << 26)))
    """More than anything may keep in memory; set the variable for 1 GB."""

    @pytest.fixture
    def env_builder(self) -> ContainerEnvBuilder:
        """Override, at any scope: the builder under test, closed afterwards."""
        raise NotImplementedError

    @pytest.fixture
    def spec(self) -> ContainerSpec:
        """Override where an image is needed."""
        return ContainerSpec(env={"FROM_SPEC": "spec"})

    @pytest.fixture
    async def env(
        self, env_builder: ContainerEnvBuilder, spec: ContainerSpec
    ) -> AsyncIterator[ContainerEnv]:
        """A started environment."""
        async with await env_builder.start(spec) as env:
            yield env

    # --- ends of commands ---------------------------------------------------------------------

    async def test_exit_codes(self, env: ContainerEnv) -> None:
        """The exit code is the shell's, 128 + n for a signal."""
        expected = {
            "true": 0,
            "false": 1,
            "exit 3": 3,
            "(exit 200)": 200,
            "nonexistent-program": 127,
            "kill -KILL $$": 137,
            "kill -TERM $$": 143,
            "bash -c 'kill -SEGV $$'; exit $?": 139,
            "if": 2,
        }
        results = {command: await env.execute(command) for command in expected}
        assert {command: result.exit_code for command, result in results.items()} == expected
        assert not any(result.timed_out or result.out_of_memory for result in results.values())

    async def test_it_is_bash(self, env: ContainerEnv) -> None:
        """Commands may use what only bash has."""
        result = await env.execute('a=(x y); [[ ${a[1]} == y ]] && echo "${BASH_VERSION:0:1}"')
        assert (result.exit_code, int(result.output) >= 4) == (0, True)

    async def test_check_raises_with_the_result(self, env: ContainerEnv) -> None:
        """`check` turns a bad exit code into an error that holds everything."""
        with pytest.raises(CommandFailed, match="exit code 4: told") as caught:
            await env.execute("echo told; exit 4", check=True)
        assert caught.value.result.exit_code == 4

    async def test_an_empty_command_does_nothing(self, env: ContainerEnv) -> None:
        """A model may send nothing."""
        result = await env.execute("")
        assert (result.exit_code, result.output) == (0, b"")

    # --- output -------------------------------------------------------------------------------

    async def test_stderr_and_stdout_keep_their_order(self, env: ContainerEnv) -> None:
        """Both streams arrive as one, in the order written."""
        result = await env.execute("for i in 1 2 3; do echo o$i; echo e$i >&2; done")
        assert result.output == b"o1\ne1\no2\ne2\no3\ne3\n"

    async def test_output_is_bytes(self, env: ContainerEnv) -> None:
        """Every byte value comes back, NUL, CRLF and what is not UTF-8 included."""
        every = b"".join(b"\\x%02x" % value for value in range(256)).decode()
        result = await env.execute(f"printf '{every}\\r\\n'")
        assert result.output == bytes(range(256)) + b"\r\n"
        assert "\ufffd" in result.text

    async def test_big_output_is_cut_in_the_middle(self, env: ContainerEnv) -> None:
        """Head and tail are kept, what lies between is counted and never held in memory."""
        size = self.big_output_bytes
        tracemalloc.start()
        try:
            result = await env.execute(
                f"echo first; head -c {size} /dev/zero; echo last", timeout_s=120
            )
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < size / 2
        assert result.exit_code == 0
        assert result.output.startswith(b"first\n")
        assert result.output.endswith(b"last\n")
        assert len(result.output) + result.dropped_bytes == size + len(b"first\nlast\n")
        assert len(result.output) <= 16 * 1024 * 1024

    async def test_a_flood_of_lines_ends_at_the_deadline(self, env: ContainerEnv) -> None:
        """A line a microsecond does not keep the deadline from being noticed."""
        result = await until_deadline(env, HOLD + "yes", printed=b"y\n")
        assert (result.timed_out, result.exit_code) == (True, -1)
        assert result.output.startswith(b"y\ny\n")
        await assert_dead(env)

    async def test_output_cannot_forge_a_frame(self, env: ContainerEnv) -> None:
        """What looks like a protocol's frame is output like any other."""
        forged = '\\0\\0\\0\\x02{}\\x01\\0\\0\\0\\0\\0\\0\\x05{"exit_code": 0}\\n'
        result = await env.execute(f"printf '{forged}'; exit 7")
        assert result.exit_code == 7
        assert b'{"exit_code": 0}' in result.output

    async def test_closing_stdout_ends_nothing(self, env: ContainerEnv) -> None:
        """A command without output goes on to its own end."""
        result = await env.execute("echo a; exec 1>&- 2>&-; sleep 0.05; touch went-on; exit 6")
        assert (result.exit_code, result.output) == (6, b"a\n")
        assert (await env.execute("test -e went-on")).exit_code == 0

    # --- input --------------------------------------------------------------------------------

    async def test_stdin_is_at_its_end(self, env: ContainerEnv) -> None:
        """Reading does not wait."""
        result = await env.execute("cat; read x; echo $?", timeout_s=20)
        assert result.output == b"1\n"

    async def test_a_command_of_200_kb(self, env: ContainerEnv) -> None:
        """Commands may be longer than one argument can be."""
        text = "é" * 100_000
        result = await env.execute(f"x='{text}'; printf %s \"$x\" | wc -c; exit 5")
        assert (result.exit_code, result.output.strip()) == (5, b"200000")

    async def test_a_long_script_with_here_document(self, env: ContainerEnv) -> None:
        """A file of many lines can be written by one command."""
        lines = "".join(f"line {i} $HOME `x` \\n\n" for i in range(10_000))
        result = await env.execute(f"cat > out.txt <<'EOF'\n{lines}EOF\nwc -l < out.txt")
        assert result.output.strip() == b"10000"
        assert await env.read_file("out.txt", max_bytes=1 << 20) == lines.encode()

    async def test_odd_characters_are_no_crash(self, env: ContainerEnv) -> None:
        """NUL and lone surrogates, which a model may emit, give a result."""
        for command in ("echo a\0b", "echo \udcff", "a=\ud800; $a"):
            assert isinstance((await env.execute(command)).exit_code, int)
        assert (await env.execute("echo fine")).output == b"fine\n"

    # --- what lasts ---------------------------------------------------------------------------

    async def test_only_files_last(self, env: ContainerEnv) -> None:
        """Directory, variables, umask and functions of a command end with it."""
        before = await env.execute("pwd; umask; echo $PATH; type f")
        await env.execute("echo kept > file; cd /; umask 077; export PATH=/nowhere A=1; f() { :; }")
        after = await env.execute("pwd; umask; echo $PATH$A; type f")
        assert after.output == before.output
        assert (await env.execute("cat file")).output == b"kept\n"

    async def test_workdir_and_variables(self, env: ContainerEnv, spec: ContainerSpec) -> None:
        """Commands start in the workdir, with the specification's and their own variables."""
        result = await env.execute('pwd; echo "$FROM_SPEC $MINE"', env={"MINE": "a b"})
        assert result.text == f"{env.template_vars()['cwd']}\nspec a b\n"

    async def test_cwd_per_command(self, env: ContainerEnv) -> None:
        """`cwd` is for one command; a missing one is an error of that command."""
        await env.execute("mkdir -p a/b")
        cwd = env.template_vars()["cwd"]
        assert (await env.execute("pwd", cwd=f"{cwd}/a/b")).text == f"{cwd}/a/b\n"
        missing = await env.execute("pwd", cwd=f"{cwd}/missing")
        assert (missing.exit_code, "No such file" in missing.text) == (126, True)

    async def test_the_owners_environment_is_not_seen(
        self, env: ContainerEnv, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Secrets of the process that runs episodes do not reach commands."""
        monkeypatch.setenv("AGENTFLOW_TEST_SECRET", "secret")
        assert b"AGENTFLOW_TEST_SECRET" not in (await env.execute("env")).output

    async def test_removing_the_workdir_is_survived(self, env: ContainerEnv) -> None:
        """After `rm -rf` on its own directory the next command gives a result."""
        await env.execute('rm -rf "$PWD"')
        result = await env.execute("echo here")
        assert result.exit_code in {0, 126}

    # --- time-outs and trees ------------------------------------------------------------------

    async def test_timeout_keeps_what_was_printed(self, env: ContainerEnv) -> None:
        """A time-out is a result: -1, the output so far, and a duration."""
        command = HOLD + f"echo before; sleep {FOREVER_S}"
        result = await until_deadline(env, command, printed=b"before\n")
        assert (result.exit_code, result.timed_out, result.output) == (-1, True, b"before\n")
        assert result.duration_s >= 0.3
        await assert_dead(env)

    @pytest.mark.parametrize(
        "child",
        [
            f"sleep {FOREVER_S} &",
            f"setsid sleep {FOREVER_S} &",
            f"nohup sleep {FOREVER_S} &",
            f"(setsid bash -c 'sleep {FOREVER_S} & sleep {FOREVER_S}' &) &",
            f"env -i setsid setsid bash -c 'trap \"\" TERM HUP INT; sleep {FOREVER_S}' &",
            "f() { f & }; f; ",
        ],
    )
    async def test_nothing_outlives_a_timeout(self, env: ContainerEnv, child: str) -> None:
        """Sessions, double forks and ignored signals save no child."""
        command = HOLD + f"trap '' TERM INT HUP; {child} echo up; while :; do sleep 0.05; done"
        result = await until_deadline(env, command, printed=b"up\n")
        assert (result.timed_out, result.output) == (True, b"up\n")
        await assert_dead(env)

    async def test_a_background_child_neither_blocks_nor_stays(self, env: ContainerEnv) -> None:
        """A child that keeps the output open does not hold up the result, and dies with it."""
        for start in ("", "setsid", "nohup"):
            command = HOLD + f"{start} sleep {FOREVER_S} & echo started"
            result = await env.execute(command, timeout_s=20)
            assert (result.exit_code, result.output) == (0, b"started\n")
            await assert_dead(env)

    async def test_output_of_a_short_background_child_is_kept(self, env: ContainerEnv) -> None:
        """What a child wrote before the command ended is not lost."""
        result = await env.execute("(echo child; touch said) & wait; echo parent")
        assert result.output == b"child\nparent\n"

    async def test_a_stopped_tree_dies(self, env: ContainerEnv) -> None:
        """SIGSTOP is no way to outlive the deadline."""
        command = HOLD + f"sleep {FOREVER_S} & echo up; kill -STOP $! $$"
        result = await until_deadline(env, command, printed=b"up\n")
        assert result.timed_out
        await assert_dead(env)

    async def test_kill_all_by_the_command(self, env: ContainerEnv) -> None:
        """A command that kills its own group ends itself and nothing else."""
        result = await env.execute("kill -KILL 0")
        assert result.exit_code == 137
        assert (await env.execute("echo next")).output == b"next\n"

    async def test_fork_bomb(self, env: ContainerEnv) -> None:
        """A bomb meets the limit, dies at the deadline, and the environment goes on."""
        if not self.limits_pids:
            pytest.skip("processes are not limited here")
        await env.execute(HOLD + "f() { f | f & }; f; sleep 60", timeout_s=1)
        await assert_dead(env)
        assert (await env.execute("echo next")).output == b"next\n"

    async def test_cancelling_kills(self, env: ContainerEnv) -> None:
        """When the wait is cancelled, the tree is dead once the cancellation arrives."""
        if not self.side_by_side:
            pytest.skip("commands wait for each other here")
        command = HOLD + f"setsid sleep {FOREVER_S} & touch up; sleep {FOREVER_S}"
        async with asyncio.TaskGroup() as group:
            running = group.create_task(env.execute(command))
            await until_there(env, "up")
            running.cancel()
        assert running.cancelled()
        await assert_dead(env)

    # --- side by side -------------------------------------------------------------------------

    async def test_commands_run_side_by_side(self, env: ContainerEnv) -> None:
        """Two commands of one environment that wait for each other both end."""
        if not self.side_by_side:
            pytest.skip("commands wait for each other here")

        def meet(mine: str, other: str) -> str:
            return f"touch {mine}; until test -e {other}; do sleep 0.01; done; echo {mine}"

        results = await asyncio.gather(
            env.execute(meet("a", "b"), timeout_s=20), env.execute(meet("b", "a"), timeout_s=20)
        )
        assert [result.output for result in results] == [b"a\n", b"b\n"]

    async def test_a_deadline_hits_only_its_own_command(self, env: ContainerEnv) -> None:
        """The tree of a neighbour in the same environment is left alone."""
        if not self.side_by_side:
            pytest.skip("commands wait for each other here")
        async with asyncio.TaskGroup() as group:
            long = group.create_task(
                env.execute("until test -e go; do sleep 0.01; done; echo lived", timeout_s=20)
            )
            short = await env.execute(f"sleep {FOREVER_S}", timeout_s=0.2)
            await env.execute("touch go")
        assert short.timed_out
        assert long.result().output == b"lived\n"

    async def test_environments_are_apart(
        self, env: ContainerEnv, env_builder: ContainerEnvBuilder, spec: ContainerSpec
    ) -> None:
        """Files of one are not in the other, and stopping one leaves the other."""
        async with await env_builder.start(spec) as other:
            assert other.name != env.name
            await env.execute(
                "echo mine > file; echo mine > $HOME/file; echo mine > ${TMPDIR:-/tmp}/f"
            )
            seen = await other.execute("ls -A . $HOME ${TMPDIR:-/tmp}")
            assert "file" not in seen.text.split()
        assert (await env.execute("cat file")).output == b"mine\n"

    async def test_stop_is_idempotent_and_final(self, env: ContainerEnv) -> None:
        """Stopping twice is fine; a command afterwards is told that the environment is gone."""
        await env.stop()
        await env.stop()
        with pytest.raises(EnvDied):
            await env.execute("true")

    async def test_stop_ends_a_running_command(self, env: ContainerEnv) -> None:
        """Whoever waits for a command of a stopped environment is told."""
        if not self.side_by_side:
            pytest.skip("commands wait for each other here")
        async with asyncio.TaskGroup() as group:

            async def run() -> None:
                with pytest.raises(EnvDied):
                    await env.execute(f"touch up; sleep {FOREVER_S}")

            group.create_task(run())
            await until_there(env, "up")
            await env.stop()

    # --- files --------------------------------------------------------------------------------

    async def test_files_go_in_and_come_out(self, env: ContainerEnv) -> None:
        """Bytes arrive unchanged, with the folders they need, in names of any kind."""
        data = bytes(range(256)) * 300
        files = {"a/b/c.bin": data, "empty": b"", "näme with 'quotes'": b"x\n"}
        await env.write_files(files)
        for path, content in files.items():
            assert await env.read_file(path, max_bytes=len(data)) == content
        assert (await env.execute("wc -c < a/b/c.bin")).output.strip() == b"76800"

    async def test_files_below_another_root(self, env: ContainerEnv) -> None:
        """`root` is where paths begin; commands can use and remove what was written."""
        root = f"{env.template_vars()['cwd']}/deep/er"
        await env.write_files({"f": b"1", "g/h": b"2"}, root=root)
        assert (await env.execute("cat deep/er/f deep/er/g/h; rm -r deep")).output == b"12"
        with pytest.raises(FileNotFoundError):
            await env.read_file(f"{root}/f", max_bytes=10)

    async def test_writing_replaces(self, env: ContainerEnv) -> None:
        """A file that is there is replaced, longer ones too, and keeps being executable."""
        await env.execute("printf '#!/bin/sh\\necho a long old text\\n' > run; chmod 755 run")
        await env.write_files({"run": b"#!/bin/sh\necho new\n"})
        assert (await env.execute("./run")).output == b"new\n"

    async def test_paths_that_lead_out_are_refused(self, env: ContainerEnv) -> None:
        """No path climbs out of its root."""
        for path in ("../up", "a/../../up", "/etc/up", ""):
            with pytest.raises(ValueError, match="must"):
                await env.write_files({path: b"x"})

    async def test_read_limits(self, env: ContainerEnv) -> None:
        """A file that is larger than asked for is refused, one that just fits is not."""
        await env.execute("head -c 100 /dev/zero > f")
        assert len(await env.read_file("f", max_bytes=100)) == 100
        with pytest.raises(ValueError, match="f"):
            await env.read_file("f", max_bytes=99)
        with pytest.raises(FileNotFoundError):
            await env.read_file("missing/f", max_bytes=1)

    async def test_only_regular_files_are_read(self, env: ContainerEnv) -> None:
        """A FIFO, a folder, a device or a loop is refused at once."""
        await env.execute("mkfifo x1; mkdir x2; ln -s /dev/zero x3; ln -s x4 x4", check=True)
        async with asyncio.timeout(20):
            for path in ("x1", "x2", "x3", "x4"):
                with pytest.raises(ValueError, match=path):
                    await env.read_file(path, max_bytes=100)

    async def test_links_do_not_lead_reading_out(self, env: ContainerEnv) -> None:
        """A planted link does not show a file from outside the environment."""
        await env.execute("ln -s /etc/passwd f; ln -s /etc dir", check=True)
        for path in ("f", "dir/passwd"):
            with pytest.raises(ValueError, match=path):
                await env.read_file(path, max_bytes=1 << 20)

    async def test_links_do_not_lead_writing_out(self, env: ContainerEnv) -> None:
        """A link in a file's place is replaced; the file it names keeps its content."""
        await env.execute("mkdir out; echo old > out/f; ln -s out/f link", check=True)
        await env.write_files({"link": b"new\n"})
        result = await env.execute("cat out/f link; test -L link")
        assert (result.output, result.exit_code) == (b"old\nnew\n", 1)

    async def test_a_fifo_does_not_block_writing(self, env: ContainerEnv) -> None:
        """A FIFO in a file's place is replaced."""
        await env.execute("mkfifo f", check=True)
        async with asyncio.timeout(20):
            await env.write_files({"f": b"new"})
        assert await env.read_file("f", max_bytes=3) == b"new"

    # --- words --------------------------------------------------------------------------------

    async def test_template_vars(self, env: ContainerEnv) -> None:
        """Prompts can say where commands run."""
        variables = env.template_vars()
        assert {"cwd", "system", "machine"} <= set(variables)
        assert not set(variables) & (set(os.environ) - {"system"})
