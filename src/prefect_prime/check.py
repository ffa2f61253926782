"""``python -m prefect_prime.check``: whether an eval could be tracked, before GPU hours burn.

Only the name lives here, where people look for it: the check asks Prefect too, of which this
layer knows nothing, so that its work is done in ``prefect_prime.flows.check``.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("prefect_prime.flows.check", run_name="__main__", alter_sys=True)
