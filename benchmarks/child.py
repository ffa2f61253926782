"""One measurement in a process of its own: ``python -m benchmarks.child FUNCTION JSON FILE``.

Calls ``module:function`` with the arguments of a JSON object; what it returns goes into a file.
"""

import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    """Measure, in here."""
    name, arguments, result = sys.argv[1:]
    module, _, function = name.partition(":")
    returned = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    Path(result).write_text(json.dumps(returned))


if __name__ == "__main__":
    main()
