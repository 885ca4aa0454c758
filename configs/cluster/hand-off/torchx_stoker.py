# ruff: noqa: INP001 - for torchx, which loads it by its path
"""A torchx component: one run of stoker over several replicas, by any scheduler that torchx knows.

torchx run -s local_cwd  configs/cluster/hand-off/torchx_stoker.py:train --run_dir /shared/runs/a --nodes 2 --script train.py -- --lr 3e-4
torchx run -s kubernetes -cfg queue=gpu configs/cluster/hand-off/torchx_stoker.py:train --image registry.example/train:1 …

Restarts are stoker's, within the allocation; torchx starts nothing again (`max_retries` 0). Where the allocation itself is lost, `stoker continue RUN_DIR`
on node 0 takes the run up.
"""

import shlex

from torchx import specs


def train(
    *script_args: str,
    script: str,
    run_dir: str,
    image: str = "registry.example/train:1",
    nodes: int = 2,
    nproc_per_node: int = 1,
    port: int = 29500,
    stoker: str = "stoker",
    flags: str = "",
    cpu: int = 4,
    gpu: int = 0,
    memMB: int = 16384,  # noqa: N803 - torchx calls it so
) -> specs.AppDef:
    """One training over several nodes, under stoker.

    Args:
        script_args: what follows the script
        script: the training script, as in `stoker run SCRIPT`
        run_dir: the run's folder, which all nodes see; a new one
        image: what the replicas run
        nodes: replicas, one a node
        nproc_per_node: ranks a node
        port: where the ranks meet on node 0
        stoker: what starts stoker there
        flags: more flags of `stoker run`
        cpu: cores a node
        gpu: GPUs a node
        memMB: memory a node, in MB
    """
    words = [*shlex.split(stoker), "run", "--no-ui", "--run-dir", run_dir, "--nnodes", str(nodes)]
    words += ["--nproc-per-node", str(nproc_per_node), "--master-port", str(port), *shlex.split(flags)]
    # The name of node 0 is in a variable of each scheduler's own; on node 0 itself some leave it empty.
    master = f'"$${{{specs.macros.rank0_env}:=localhost}}"'
    place = f"--node-rank {specs.macros.replica_id} --master-addr {master}"
    command = f"exec {shlex.join(words)} {place} {shlex.join([script, *script_args])}"
    role = specs.Role(
        name="node",
        image=image,
        entrypoint="sh",
        args=["-c", command],
        num_replicas=nodes,
        max_retries=0,
        port_map={"master": port},
        resource=specs.Resource(cpu=cpu, gpu=gpu, memMB=memMB),
    )
    return specs.AppDef(name="stoker", roles=[role])
