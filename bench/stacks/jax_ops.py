"""An MLP and its gradient under jax.jit; prints digests of the results."""
import hashlib
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Kernels that are chosen by their speed differ from run to run, and sums with them.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true")
import jax
import jax.numpy as jnp
import numpy as np


def loss(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.gelu(x @ w + b)
    w, b = params[-1]
    return jnp.mean((jax.nn.log_softmax(x @ w + b) - y) ** 2)


@jax.jit
def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


rng = np.random.default_rng(0)
sizes = [256, 512, 512, 64]
params = [(jnp.asarray(rng.normal(size=(a, b)).astype(np.float32) * 0.05), jnp.zeros(b)) for a, b in zip(sizes, sizes[1:])]
x = jnp.asarray(rng.normal(size=(512, 256)).astype(np.float32))
y = jnp.asarray(rng.normal(size=(512, 64)).astype(np.float32))
for i in range(10):
    value, params = step(params, x, y)
    print(f"step {i} loss {float(value):.6f}")
print("weights", hashlib.sha256(np.asarray(params[0][0]).tobytes()).hexdigest()[:16])
