/* Whose turn it is in a Coordinator, and what ends it: entering and leaving a call, what was dropped meanwhile, and failures.
 * Called by every method that waits or touches the device. Invariant: between enter and done, nothing that the call reads is changed or
 * given back, whichever thread asks for it. */
#include "core_coordinator.h"

#include <string.h>

sp_deadline sp_coordinator_deadline(const coordinator_object *c) { return sp_deadline_in(c->timeout_s); }

uint32_t sp_coordinator_context(const coordinator_object *c, bool capturing) {
    return c->context | (c->captures ? SP_CTX(IN_CAPTURE) : 0) | (capturing ? SP_CTX(STREAM) : 0);
}

bool sp_coordinator_idle(const coordinator_object *c) {
    if (!c->busy) return true;
    PyErr_SetString(c->state->error, "this Coordinator is in a call of another thread; one thread drives a rank");
    return false;
}

bool sp_coordinator_ready(coordinator_object *c) {
    if (!c->seam)
        PyErr_SetString(c->state->error, "this Coordinator is closed; make a new one");
    else if (*c->broken)
        PyErr_Format(c->state->error, "this Coordinator is broken and only close() is left: %s", c->broken);
    else
        return sp_coordinator_idle(c);
    return false;
}

bool sp_coordinator_enter(coordinator_object *c) {
    if (!sp_coordinator_ready(c)) return false;
    c->busy = true;
    return true;
}

typedef struct core_late {
    struct core_late *next;
    int kind;
    void *what;
} core_late;

static void drop_now(coordinator_object *c, int kind, void *what) {
    if (!c->seam) return; /* gone with its communicator */
    c->busy = true;       /* nobody closes it, or captures, while another thread gives this back */
    Py_BEGIN_ALLOW_THREADS switch (kind) {
    case SP_DROP_GRAPH: c->seam->graph_free(c->comm, what); break;
    case SP_DROP_WINDOW: c->seam->window_free(c->comm, what); break;
    default: c->seam->memory.free(c->comm, what);
    }
    Py_END_ALLOW_THREADS c->busy = false;
}

void sp_coordinator_drop(coordinator_object *c, int kind, void *what) {
    core_late *late = c->busy ? PyMem_Malloc(sizeof *late) : NULL;
    if (!c->busy) drop_now(c, kind, what);
    if (!late) return; /* where there is no memory for the note, the process keeps what it would have given back */
    *late = (core_late){c->late, kind, what};
    c->late = late;
}

void sp_coordinator_done(coordinator_object *c) {
    c->busy = false;
    while (c->late) {
        core_late *late = c->late;
        c->late = late->next;
        drop_now(c, late->kind, late->what);
        PyMem_Free(late);
    }
}

void sp_coordinator_break(coordinator_object *c, const char *text) {
    sp_coordinator_let_go(c);
    if (c->world.size == 1) return; /* nobody waits for it */
    char why[sizeof c->broken];     /* text may be the one that abort() overwrites */
    snprintf(why, sizeof why, "%s", text);
    if (!*c->broken) memcpy(c->broken, why, sizeof why);
    sp_board_fail(c->board, c->world.rank, why); /* before abort(), which would only say that it aborted */
    if (!c->comm) return;
    bool busy = c->busy;
    c->busy = true;                                 /* so that no other thread closes it meanwhile */
    Py_BEGIN_ALLOW_THREADS c->seam->abort(c->comm); /* within a limit, but of seconds */
    Py_END_ALLOW_THREADS if (!busy) sp_coordinator_done(c);
}

/* Ranks are together after these, unless the call was posted: every rank refused alike, or none has begun. */
static bool leaves_ranks_together(sp_status status) {
    return status == SP_INVALID || status == SP_UNAVAILABLE || status == SP_NOMEM;
}

PyObject *sp_coordinator_fail(coordinator_object *c, sp_status status, const char *text) {
    char all[1536], boards[768] = "where the others stand is not known: they are on other machines";
    if (!c->exchange_owner) sp_board_describe(c->board, boards, sizeof boards);
    bool said = strstr(text, "rank 0 (pid"); /* a wait on the board has said it already */
    snprintf(all, sizeof all, "%s%s%s", text, said ? "" : "; ", said ? "" : boards);
    if (!leaves_ranks_together(status)) sp_coordinator_break(c, text);
    return sp_raise_text(c->state, status, all);
}
