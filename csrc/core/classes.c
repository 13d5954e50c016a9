/* Cuts the calls of a worker into classes and routes one of each. See classes.h. */
#include "classes.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    uint8_t contiguous, weak, aligned, registered;
} layouts[SP_LAYOUT_COUNT] = {
#define X(id, name, contiguous, weak, aligned, registered) {contiguous, weak, aligned, registered},
    SP_LAYOUTS(X)
#undef X
};

/* Everything from `path` on: where it goes and why. */
static bool same_route(const sp_class *a, const sp_class *b) {
    size_t from = offsetof(sp_class, path);
    return memcmp((const char *)a + from, (const char *)b + from, sizeof *a - from) == 0;
}

/* Appends a class, or lets the last one of its residue grow. `previous` is the index of that one + 1. */
static sp_status append(sp_classes *classes, const sp_class *row, size_t *previous) {
    if (*previous && same_route(&classes->rows[*previous - 1], row) && classes->rows[*previous - 1].last + 1 == row->first) {
        classes->rows[*previous - 1].last = row->last;
        return SP_OK;
    }
    if (classes->count == classes->room) {
        size_t room = classes->room ? classes->room * 2 : 128;
        sp_class *rows = realloc(classes->rows, room * sizeof *rows);
        if (!rows) return sp_fail(SP_NOMEM, "%zu classes of calls", room);
        classes->rows = rows;
        classes->room = room;
    }
    classes->rows[classes->count++] = *row;
    *previous = classes->count;
    return SP_OK;
}

/* A dtype of 4 bytes has no size with a remainder of 1 to 3; one of 2 bytes has sizes 2 modulo 4. */
static bool dtype_has(uint64_t dtype, sp_residue residue) {
    int bytes = sp_dtype_bytes[dtype];
    return residue == SP_RESIDUE_16 || (residue == SP_RESIDUE_4 && bytes <= 8) || (residue == SP_RESIDUE_1 && bytes < 4);
}

static uint64_t sample_of(uint64_t from, sp_residue residue, uint64_t dtype) {
    uint64_t bytes = (uint64_t)sp_dtype_bytes[dtype];
    uint64_t size = (from + bytes - 1) / bytes * bytes;
    while (sp_residue_of(size) != residue) size += bytes;
    return size;
}

static sp_status add_bands(const sp_rules *rules, const sp_case *c, const sp_class *like, sp_classes *classes) {
    sp_bands bands;
    size_t previous[SP_RESIDUE_COUNT] = {0};
    SP_TRY(sp_bands_find(rules, c, &bands));
    for (size_t i = 0; i < bands.count; i++) {
        uint64_t end = i + 1 < bands.count ? bands.first[i + 1] : SP_SIZE_MAX;
        for (sp_residue residue = 0; residue < SP_RESIDUE_COUNT; residue++) {
            if (!dtype_has(like->dtype, residue)) continue;
            sp_class row = *like;
            sp_call call = *c->call;
            sp_case one = *c;
            sp_route_result r;
            row.first = bands.first[i];
            row.last = end - 1;
            row.residue = residue;
            row.sample = sample_of(row.first, residue, like->dtype);
            if (row.sample > row.last) continue;
            call.nbytes = row.sample;
            one.call = &call;
            one.edges = NULL;
            SP_TRY(sp_route_call(rules, &one, &r));
            row.path = r.decision.path;
            row.rule = r.decision.rule;
            row.op = r.decision.op;
            row.exception = r.decision.exception;
            row.kernel = r.kernel;
            row.backend = r.backend;
            row.returns_new = r.returns_new;
            row.cloned = r.cloned;
            row.reduces = r.reduces;
            row.word = r.query.word;
            row.raises = r.query.raises;
            SP_TRY(append(classes, &row, &previous[residue]));
        }
    }
    return SP_OK;
}

sp_status sp_classes_find(const sp_rules *rules, const sp_case *c, const sp_classes_of *of, sp_classes *classes) {
    *classes = (sp_classes){0};
    for (size_t k = 0; k < of->contexts_count; k++)
        for (unsigned dtype = 0; dtype < SP_DTYPE_COUNT; dtype++)
            for (unsigned layout = 0; layout < SP_LAYOUT_COUNT; layout++) {
                if (!(of->dtypes >> dtype & 1) || !(of->layouts >> layout & 1)) continue;
                sp_call call = *c->call;
                sp_case one = *c;
                call.dtype = (int64_t)dtype;
                call.contiguous = layouts[layout].contiguous;
                call.weak_contiguous = layouts[layout].weak;
                call.aligned = layouts[layout].aligned;
                call.registered = layouts[layout].registered;
                one.call = &call;
                one.context = of->contexts[k];
                sp_class like = {.context = one.context, .dtype = dtype, .layout = layout};
                sp_status status = add_bands(rules, &one, &like, classes);
                if (status) {
                    sp_classes_free(classes);
                    return status;
                }
            }
    return SP_OK;
}

void sp_classes_free(sp_classes *classes) {
    free(classes->rows);
    *classes = (sp_classes){0};
}
