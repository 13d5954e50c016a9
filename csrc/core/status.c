/* The text of the last failure, one a thread; called by everything that can fail, read by csrc/py. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char error_text[512];

static const char *const status_texts[] = {
#define X(id, text) text,
    SP_STATUSES(X)
#undef X
};

sp_status sp_fail(sp_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
    return status;
}

const char *sp_error(void) { return error_text; }

const char *sp_status_text(sp_status status) {
    return (unsigned)status < SP_STATUS_COUNT ? status_texts[status] : "unknown status";
}
