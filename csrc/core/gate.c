/* What all gates share: comparing a size with a threshold, and the defaults of facts and calls. Called by gate_*.c, the binding.
 * Invariant: an edge is noted whichever way the comparison falls, so one question names every threshold that it met. */
#include "gate.h"

const int sp_dtype_bytes[SP_DTYPE_COUNT] = {
#define X(id, name, bytes) bytes,
    SP_DTYPES(X)
#undef X
};

enum { WHEN_CALL, WHEN_SETUP };
const uint64_t sp_stops_of_setup = 0
#define X(id, name, when, text) | ((uint64_t)WHEN_##when << SP_STOP_BIT_##id)
    SP_STOPS(X)
#undef X
    ;

/* `first` is the first size on the far side of the threshold. */
static void note_edge(sp_edges *edges, uint64_t first) {
    if (!edges || edges->overflow) return;
    for (size_t i = 0; i < edges->count; i++)
        if (edges->at[i] == first) return;
    if (edges->count == SP_EDGES_MAX) {
        edges->overflow = true;
        return;
    }
    edges->at[edges->count++] = first;
}

bool sp_fits(const sp_case *c, uint64_t limit) {
    if (limit < UINT64_MAX) note_edge(c->edges, limit + 1);
    return c->call->nbytes <= limit;
}

bool sp_below(const sp_case *c, uint64_t limit) {
    note_edge(c->edges, limit);
    return c->call->nbytes < limit;
}

void sp_facts_init(sp_facts *facts) {
    *facts = (sp_facts) {
#define X(field, def, text) .field = def,
        SP_FACTS(X)
#undef X
    };
}

void sp_call_init(sp_call *call) {
    *call = (sp_call) {
        .nbytes = 0,
#define X(field, def, text) .field = def,
        SP_CALL_FACTS(X)
#undef X
    };
}
