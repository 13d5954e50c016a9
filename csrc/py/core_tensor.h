/* One tensor of a caller as a path needs it. Made by core_tensor.c, used by the Coordinator and by nobody else.
 * Invariant: `data` stays valid while the caller's object lives and the array is not released. */
#ifndef SP_CORE_TENSOR_H
#define SP_CORE_TENSOR_H

#include "core_module.h"
#include "dlpack.h"

typedef struct core_array {
    void *data;
    void *
        stream; /* the producer's current stream; NULL on CPU ranks and where the producer names none (the legacy default stream) */
    uint64_t count, nbytes;
    int64_t columns, dims;
    int32_t device_type, device_id; /* DL_CPU, DL_CUDA */
    uint8_t dtype;                  /* sp_dtype */
    uint64_t order;                 /* of dimensions in memory: 0 where contiguous, else a hash of the strides */
    bool contiguous, dense;         /* dense: its elements fill one piece of memory without gaps, in whatever order */
    PyObject *capsule;              /* what keeps a slow DLPack exchange alive, or NULL */
} core_array;

/* What is remembered of a producer's type: how to read its tensors, and its `empty_like`. */
typedef struct core_producer {
    PyTypeObject *type; /* borrowed as a key, kept alive by `held` */
    PyObject *held;
    const dl_exchange *exchange; /* NULL: NumPy, or the slow way */
    bool is_numpy;
    PyObject *empty_like;
} core_producer;

enum { SP_PRODUCERS = 4 };
typedef struct core_producers {
    core_producer of[SP_PRODUCERS];
    unsigned next; /* the one to be replaced */
} core_producers;

bool sp_array_read(core_producers *producers, PyObject *tensor, core_array *array); /* false with an exception set */
void sp_array_release(core_array *array);
PyObject *sp_array_empty_like(core_producers *producers, PyObject *tensor); /* through the producer's own empty_like */
void sp_producers_clear(core_producers *producers);
int sp_producers_traverse(core_producers *producers, visitproc visit, void *arg);

/* core_array.c, which alone knows NumPy's C API: 1 and the array filled in, 0 when the object is no NumPy array, -1 with an error */
bool sp_is_numpy(PyObject *object);
int sp_array_of_numpy(PyObject *object, core_array *array);
/* Strides in elements, NULL for contiguous: fills count, contiguous, dense and order. false with an exception where it has no element. */
bool sp_array_layout(core_array *array, int64_t dims, const int64_t *shape, const int64_t *strides);

#endif
