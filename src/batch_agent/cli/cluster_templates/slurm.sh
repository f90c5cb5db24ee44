#!/bin/bash
# Workers of run {{run}} on Slurm, as a job array. Written by batch-agent {{version}}.
#
#   sbatch FILE
#   sbatch --array=1-100%{{workers}} FILE    # {{workers}} at a time: the next one starts when one reaches its time limit
#
# The run is started elsewhere, with batch-agent run --store ... --run {{run}}.
#SBATCH --job-name={{name}}
#SBATCH --array=1-{{workers}}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={{cpus}}
#SBATCH --mem={{memory_gb}}G
#SBATCH --signal=B:TERM@{{grace}}
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

{{store_export}}

# The worker replaces the shell, so that it receives the signals of Slurm itself.
exec {{shell_command}}
