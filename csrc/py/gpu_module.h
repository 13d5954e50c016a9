/* What the files of the _gpu binding share. Invariant: as in csrc/py/core_*: a failed call leaves nothing held. */
#ifndef SP_GPU_MODULE_H
#define SP_GPU_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "gpu/gpu.h"

extern PyMethodDef sp_gpu_custom_methods[];   /* gpu_custom.c */
extern PyMethodDef sp_gpu_exchange_methods[]; /* gpu_exchange.c */

PyObject *sp_gpu_raise(PyObject *module, sp_status status); /* sp_error() as an exception; always NULL */

#endif
