/* Enums of the lists, and their names. Called by every file of core and by the binding.
 * Invariant: the n-th enumerator and the n-th name come from the same line of lists.h. */
#ifndef SP_NAMES_H
#define SP_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "facts.h"
#include "lists.h"

typedef enum sp_path {
#define X(id, name, text) SP_PATH_##id,
    SP_PATHS(X)
#undef X
        SP_PATH_COUNT
} sp_path;

typedef enum sp_rule {
#define X(id, name, text) SP_RULE_##id,
    SP_RULES(X)
#undef X
        SP_RULE_COUNT
} sp_rule;

typedef enum sp_exception {
#define X(id, name, text) SP_EXC_##id,
    SP_EXCEPTIONS(X)
#undef X
        SP_EXC_COUNT
} sp_exception;

typedef enum sp_condition {
#define X(id, name, communicator, text) SP_COND_##id,
    SP_CONDITIONS(X)
#undef X
        SP_COND_COUNT
} sp_condition;

typedef enum sp_context_bit {
#define X(id, name, text) SP_CTX_BIT_##id,
    SP_CONTEXTS(X)
#undef X
        SP_CTX_COUNT
} sp_context_bit;

typedef enum sp_dtype {
#define X(id, name, bytes) SP_DTYPE_##id,
    SP_DTYPES(X)
#undef X
        SP_DTYPE_COUNT
} sp_dtype;

typedef enum sp_state {
#define X(id, name) SP_STATE_##id,
    SP_STATES(X)
#undef X
        SP_STATE_COUNT
} sp_state;

typedef enum sp_kernel {
#define X(id, name, conformed, text) SP_KERNEL_##id,
    SP_KERNELS(X)
#undef X
        SP_KERNEL_COUNT
} sp_kernel;

typedef enum sp_device {
#define X(id, name) SP_DEVICE_##id,
    SP_DEVICES(X)
#undef X
        SP_DEVICE_COUNT
} sp_device;

/* One bit of the words that rules and contexts are made of. */
#define SP_BIT(id) (UINT64_C(1) << SP_COND_##id)
#define SP_CTX(id) (UINT32_C(1) << SP_CTX_BIT_##id)

_Static_assert(SP_COND_COUNT <= 64, "the condition word has 64 bits");
_Static_assert(SP_CTX_COUNT <= 32, "the context word has 32 bits");

extern const int sp_dtype_bytes[SP_DTYPE_COUNT];

/* Names by code, for the texts of errors. */
static inline const char *sp_path_name(uint8_t path) {
    static const char *const names[] = {
#define X(id, name, text) name,
        SP_PATHS(X)
#undef X
    };
    return path < SP_PATH_COUNT ? names[path] : "?";
}

static inline const char *sp_kernel_name(uint8_t kernel) {
    static const char *const names[] = {
#define X(id, name, conformed, text) name,
        SP_KERNELS(X)
#undef X
    };
    return kernel < sizeof names / sizeof *names ? names[kernel] : "?";
}

static inline const char *sp_dtype_name(uint8_t dtype) {
    static const char *const names[] = {
#define X(id, name, bytes) name,
        SP_DTYPES(X)
#undef X
    };
    return dtype < SP_DTYPE_COUNT ? names[dtype] : "?";
}

#endif
