"""Containers: a session inside each one instead of an exec for each command.

    DockerEnvBuilder.start ──▶ Images, helper volume ──▶ Container (create, start)
           │  limits: starts, live, rewards, commands        │
           ▼                                                 ▼
    DockerEnv.execute ──▶ Session ──frames over one attach──▶ helper, PID 1 ──▶ bash -c …
           │                 │ connection broke: ask the engine, attach again, fetch the end
           ▼                 ▼
    CommandResult       EngineGone, ContainerDied, ContainerKilled, OutOfMemory

`config` what can be set; `address` where the engine is; `engine` the control plane (the SDK in
threads) and `stream` the one connection that must not block; `wire` the frames; `session` and
`shell_session` the two kinds of session; `container` a container's life and the verdict on its
end; `freezer` its pause; `pool` containers made ahead; `leases` what outlives a hold, `detached`
what waits under one; `owner` and `sweep` what nobody needs any more; `images`, `base_image` and
`volume` what containers are made of; `helper/` the program inside, in C.
"""

from agentflow.swe.environment.docker.builder import DockerEnvBuilder
from agentflow.swe.environment.docker.config import DockerConfig
from agentflow.swe.environment.docker.env import DockerEnv
from agentflow.swe.environment.docker.leases import EnvLease
from agentflow.swe.environment.docker.sweep import Swept, clean

__all__ = ["DockerConfig", "DockerEnv", "DockerEnvBuilder", "EnvLease", "Swept", "clean"]
