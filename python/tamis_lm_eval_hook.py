"""Registers `--model tamis` when the LM Evaluation Harness is imported: it discovers no models of other packages.

tamis_lm_eval.pth imports this file whenever Python starts, so it imports nothing and waits for `lm_eval.models`.
"""

import sys


class _Finder:
    """Finds `lm_eval.models` like the finders after it, and registers the model once the module is executed."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "lm_eval.models":
            return None
        sys.meta_path.remove(cls)
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module):
                execute(module)
                from lm_eval.api.registry import model_registry

                model_registry.register("tamis", target="tamis.lm_eval:TamisLM")

            spec.loader.exec_module = execute_and_register
        return spec


sys.meta_path.insert(0, _Finder)
