/* The part of DLPack's binary interface that core_tensor.c speaks: tensors, capsules of both ages, the C exchange table (DLPack 1.2).
 * Declared here because the interface is binary: no header of anybody is needed to build. Invariant: layouts as DLPack fixes them. */
#ifndef SP_DLPACK_H
#define SP_DLPACK_H

#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_FLOAT8_FIRST = 7, DL_FLOAT8_LAST = 14 };

typedef struct dl_device {
    int32_t type; /* DL_CPU, DL_CUDA, ... */
    int32_t id;
} dl_device;

typedef struct dl_dtype {
    uint8_t code; /* DL_INT, ... */
    uint8_t bits;
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* elements; NULL: contiguous */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed { /* capsule "dltensor" */
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_version {
    uint32_t major, minor;
} dl_version;

typedef struct dl_managed_versioned { /* capsule "dltensor_versioned" */
    dl_version version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_versioned;

#define DL_READ_ONLY UINT64_C(1)

/* type(x).__dlpack_c_exchange_api__, capsule "dlpack_exchange_api". Every function answers 0, or -1 with a Python error set. */
typedef struct dl_exchange {
    dl_version version;
    struct dl_exchange *previous;
    int (*allocate)(dl_tensor *prototype, dl_managed_versioned **out, void *error_context,
                    void (*set_error)(void *error_context, const char *kind, const char *message));
    int (*managed_from_object)(void *object, dl_managed_versioned **out);
    int (*object_from_managed)(dl_managed_versioned *tensor, void **object);
    int (*tensor_from_object)(void *object, dl_tensor *out); /* borrowed; may be NULL */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} dl_exchange;

#endif
