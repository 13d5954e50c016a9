"""Stands for torchvision, which has no package that loads beside this release of torch without CUDA: the one module of the environment
that is not the real one. Any name of any of its submodules is an empty class; what SGLang does with pictures is no subject here.
"""

import importlib.abc
import importlib.machinery
import sys

__version__ = "0.0"


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__getattr__ = __getattr__


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything(name, (), {})


sys.meta_path.append(_Submodules())
