"""Cost of a large batch: critical batch size, noise scale, trade-off.

Sections Effect of the batch size and Trade-off, appendix Critical batch size
(after McCandlish et al., 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def relative_samples(batch: float, critical_batch: float) -> float:
    """Samples to a given loss, over those of a small batch: 1 + B / B_crit (Eq. critical_batch).

    With B_noise in place of B_crit, Eq. critical_batch_noise.
    """
    return 1 + batch / critical_batch


def relative_steps(batch: float, noise_scale: float) -> float:
    """Steps to a given loss, over those of a very large batch: 1 + B_noise / B."""
    return 1 + noise_scale / batch


def batch_overhead(batch: float, critical_batch: float) -> float:
    """The extra samples that a batch needs, over those of a small one: B / B_crit."""
    return batch / critical_batch


def relative_cost(batch_per_gpu: float, gpus: int, critical_batch: float) -> float:
    """Cost of a training on N_GPU: 1 + beta N_GPU / B_crit (Eq. time_cost_tradeoff).

    In units of the cost with a small batch, at the same utilization.
    """
    return relative_samples(batch_per_gpu * gpus, critical_batch)


def relative_time(batch_per_gpu: float, gpus: int, critical_batch: float) -> float:
    """Time of a training on N_GPU: cost over N_GPU (Eq. time_cost_tradeoff).

    In units of the time of one GPU with a small batch.
    """
    return relative_cost(batch_per_gpu, gpus, critical_batch) / gpus


BASE_STEPS = 50_000
"""Steps of a critical batch that a training with small batches takes (section Trade-off)."""


def training_samples(batch: float, critical_batch: float, base_steps: float = BASE_STEPS) -> float:
    """Samples of a training (section Trade-off): a base of 50,000 B_crit, 1 + B / B_crit times."""
    return base_steps * critical_batch * relative_samples(batch, critical_batch)


@dataclass(frozen=True)
class Gradient:
    """The true gradient G, the Hessian H, and the covariance Sigma_0 of one sample's gradient.

    Shapes (n), (n, n), (n, n) for n parameters.
    """

    mean: Array
    hessian: Array
    covariance: Array

    @property
    def squared_norm(self) -> float:
        """|G|^2."""
        return float(self.mean @ self.mean)

    @property
    def curvature(self) -> float:
        """G^T H G."""
        return float(self.mean @ self.hessian @ self.mean)

    @property
    def noise_scale(self) -> float:
        """B_noise = tr(H Sigma_0) / G^T H G, samples."""
        return float(np.trace(self.hessian @ self.covariance)) / self.curvature

    @property
    def simple_noise_scale(self) -> float:
        """B_noise where H is near the identity: tr(Sigma_0) / |G|^2, samples."""
        return float(np.trace(self.covariance)) / self.squared_norm


def loss_change(gradient: Gradient, estimate: Array, step_size: float) -> float:
    """Delta L of a step -epsilon G_est: -epsilon G_est^T G + epsilon^2 / 2 G_est^T H G_est."""
    slope = float(estimate @ gradient.mean)
    return -step_size * slope + step_size**2 / 2 * float(estimate @ gradient.hessian @ estimate)


def expected_loss_change(gradient: Gradient, batch: float, step_size: float) -> float:
    """E[Delta L] = -epsilon |G|^2 + epsilon^2 / 2 (G^T H G + tr(H Sigma)), Sigma = Sigma_0 / B."""
    quadratic = _noisy_curvature(gradient, batch)
    return -step_size * gradient.squared_norm + step_size**2 / 2 * quadratic


def optimal_step_size(gradient: Gradient, batch: float) -> float:
    """The epsilon of the best step: |G|^2 / (G^T H G + tr(H Sigma)) (Eq. optimal_step)."""
    return gradient.squared_norm / _noisy_curvature(gradient, batch)


def optimal_loss_change(gradient: Gradient, batch: float) -> float:
    """E[Delta L] at the optimal step: Delta L_0 / (1 + B_noise / B).

    Delta L_0 = -|G|^4 / (2 G^T H G); the paper leaves out its sign (Eq. optimal_step).
    """
    noiseless = -(gradient.squared_norm**2) / (2 * gradient.curvature)
    return noiseless / relative_steps(batch, gradient.noise_scale)


def _noisy_curvature(gradient: Gradient, batch: float) -> float:
    """G^T H G + tr(H Sigma_0) / B."""
    return gradient.curvature * relative_steps(batch, gradient.noise_scale)
