"""The paper's numbered equations, each a function of plain numbers.

"Breadth-First Pipeline Parallelism" (Lamy-Poirier, 2023), section by section:
`compute` (time and cost, compute per GPU, bubble), `memory`, `network`
(arithmetic intensities, efficiency conditions) and `batch` (critical batch
size, trade-off). They are estimates on paper; what a schedule really does is
counted from its graph elsewhere. Nothing here reads a graph or a clock.

Units: seconds, bytes, FLOP, FLOP/s, samples (sequences) and tokens. Compute is
that of whole samples: the paper prints C_GPU without the factor S_seq, that is
for one token of each, and has the factor in its intensities.

| paper     | here                              | meaning                                 |
| --------- | --------------------------------- | --------------------------------------- |
| N_GPU     | `Setup.gpus`                      | N_DP N_TP N_PP                          |
| N_DP      | `Setup.degrees.dp`                | data-parallel group                     |
| N_TP      | `Setup.degrees.tp`                | tensor-parallel group                   |
| N_PP      | `Setup.degrees.pp`                | pipeline-parallel group                 |
| B         | `Setup.batch`                     | N_DP S_mb N_mb samples                  |
| S_mb      | `Setup.microbatch_size`           | samples of a micro-batch                |
| N_mb      | `Setup.microbatches`              | sequential micro-batches                |
| B_crit    | `critical_batch`                  | critical batch size                     |
| beta      | `Setup.batch_per_gpu`             | B / N_GPU                               |
| beta_min  | `network.minimum_batch_per_gpu`   | 1 / N_TP                                |
| beta_net  | `network.network_batch_per_gpu`   | beta at which T_comp = T_net            |
| N_layers  | `Transformer.layers`              | layers                                  |
| S_hidden  | `Transformer.hidden`              | hidden size                             |
| S_seq     | `Transformer.sequence`            | tokens of a sample                      |
| N_params  | `compute.parameters`              | about 12 N_layers S_hidden^2            |
| N_stage   | `Setup.stages`                    | stages                                  |
| N_loop    | `Setup.loops`                     | N_stage / N_PP                          |
| C_GPU     | `compute.compute_per_gpu`         | FLOP of a step on a GPU                 |
| M_0       | `memory.unsharded_state`          | state memory, no sharding               |
| M_PS      | `memory.partially_sharded_state`  | state memory, partial sharding          |
| M_FS      | `memory.fully_sharded_state`      | state memory, full sharding             |
| M_act     | `memory.activation_memory`        | one layer's activations                 |
| M_ckpt    | `memory.checkpoint_memory`        | activation checkpoints                  |
| T_net     | `network_time`                    | duration of a network operation         |
| T_overlap | `overlapped_time`                 | duration of the compute beside it       |
| T_comp    | `compute_time`                    | duration of all the compute             |
| I_op      | `intensity`                       | FLOP for each byte that is transferred  |
| I_hw      | `network.hardware_intensity`      | peak FLOP/s over bytes/s, in and out    |
| I_0, I_PS | `network.data_parallel_intensity` | of data parallelism                     |
| I_FS      | `network.fully_sharded_intensity` | of fully sharded data parallelism       |
| I_PP      | `network.pipeline_intensity`      | of pipeline parallelism                 |
| I_TP      | `network.tensor_intensity`        | of tensor parallelism                   |
| B_noise   | `batch.Gradient.noise_scale`      | noise scale of the gradient             |

N_Ch (pipelines of Chimera) appears in a table only, and in no equation.
"""

from bfpp.sim.theory.setup import Setup

__all__ = ["Setup"]
