/* Status codes and the thread-local error text. Every fallible function of core, host and gpu returns sp_status.
 * Invariant: sp_fail is the only writer of the text; sp_error() is valid until the thread fails again. */
#ifndef SP_STATUS_H
#define SP_STATUS_H

#include "lists.h"

typedef enum sp_status {
#define X(id, text) SP_##id,
    SP_STATUSES(X)
#undef X
        SP_STATUS_COUNT
} sp_status;

#if defined(__GNUC__)
#define SP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define SP_PRINTF(fmt, args)
#endif

sp_status sp_fail(sp_status status, const char *format, ...) SP_PRINTF(2, 3);
const char *sp_error(void);
const char *sp_status_text(sp_status status);

#define SP_TRY(call)                             \
    do {                                         \
        sp_status sp_try_status = (call);        \
        if (sp_try_status) return sp_try_status; \
    } while (0)

#endif
