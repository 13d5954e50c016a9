/* The hook inside a worker: Recorder (a ring and what all wrapped calls share),
 * Wrapper (a C callable in place of a function), GraphWrapper (the same for
 * CUDA graphs). Made by sglang_probe/hook; one call's way is in
 * core_hook_call.c.
 *
 *   Wrapper(...)                    recorder stopped: one branch, then the
 * original
 *     -> sp_hook_call               is a call open on this thread? then this
 * one only says which path runs
 *          -> facts, context, expected path, call site core_hook_facts.c,
 * _context.c, _expect.c, _site.c
 *          -> the original                                        whatever it
 * returns or raises is passed on
 *          -> sp_ring_write, sp_ring_kind csrc/core/ring.c
 *
 * Invariant: nothing of ours is ever raised into the caller: what fails here is
 * cleared and counted, and the call goes on. The GIL is held throughout, as
 * csrc/py holds it everywhere; code that may run Python (sources, expect,
 * timer) looks again at whether the ring is open. */
#ifndef SP_CORE_HOOK_H
#define SP_CORE_HOOK_H

#include "core_module.h"

#include <structmember.h>

#include "core/ring.h"
#include "dlpack.h"

enum {
    SP_HOOK_DEPTH = 8,       /* calls of different groups inside of one another */
    SP_HOOK_TYPES = 4,       /* types of tensors that are remembered */
    SP_HOOK_GROUPS = 32,     /* names of groups that are known by their address */
    SP_HOOK_CODES = 256,     /* code objects and call sites that are known by their address */
    SP_HOOK_EXPECTED = 4096, /* expected paths */
    SP_HOOK_OWNERS = 2,      /* first arguments of a wrapper whose groups are remembered; a power of two */
    SP_HOOK_LOST = 16        /* alarms whose kind found no row in the ring */
};

/* Of tensors that have no exchange table. */
enum { SP_HOOK_NBYTES, SP_HOOK_DTYPE, SP_HOOK_SHAPE, SP_HOOK_CONTIGUOUS, SP_HOOK_POINTER, SP_HOOK_ATTRIBUTES };

/* A dotted name as interned strings: "" has none. */
enum { SP_HOOK_PARTS = 4 };
typedef struct hook_name {
    PyObject *part[SP_HOOK_PARTS];
    int parts;
} hook_name;

/* An object that a call's first argument has: asked for once, until the recorder forgets, as the group's facts are. */
typedef struct hook_held {
    PyObject *of, *object; /* weak references, held; or NULL */
    unsigned at;           /* the recorder's `forgotten` then */
} hook_held;

typedef struct hook_source {
    uint32_t bits, when;
    PyObject *where;  /* NULL: the call's first argument, which need not have it */
    uint64_t version; /* of the dict, when its item was True, False, None or not there; 0: look */
    bool is_item;     /* where is a dict, the name its key */
    bool was_true;    /* at that version */
    hook_name name;   /* none: `where` is called */
    hook_held held[SP_HOOK_OWNERS];
} hook_source;

/* Counted, because a source that is called may set others. */
typedef struct hook_sources {
    Py_ssize_t users, count;
    hook_source of[];
} hook_sources;

/* What decides an expected path, and the answer. Bytes are compared, so no hole
 * may lie before `path`. */
typedef struct hook_key {
    uint64_t nbytes;
    uint32_t rows, columns, context;
    uint16_t group;
    uint8_t entry, dtype, layout, direct;
    uint8_t path, kernel, used; /* not of the key */
    uint16_t kind;              /* 1 + row of the last such call's kind in the ring, which may be another one's; 0: not known */
} hook_key;
enum { SP_HOOK_KEY_BYTES = offsetof(hook_key, path) };
_Static_assert(sizeof(hook_key) == 32, "a pair of them is one cache line");

typedef struct hook_type {
    PyTypeObject *type; /* held */
    const dl_exchange *exchange;
} hook_type;

typedef struct hook_dtype {
    PyObject *object; /* held */
    uint8_t dtype;
} hook_dtype;

typedef struct hook_code {
    PyObject *code; /* held */
    int at;         /* instruction or line; -1: this code's frames are skipped */
    uint16_t site;
} hook_code;

/* What alarms() tells of one kind of call. */
typedef struct hook_alarm {
    uint64_t calls, first_ns;
    uint16_t group;
    uint8_t entry, path, expected;
} hook_alarm;

typedef struct hook_graphs { /* open-addressed: object to graph */
    struct {
        const void *object;
        uint32_t graph;
    } * row;
    size_t size, used;
} hook_graphs;

/* What every call looks at comes first, in as few cache lines as it needs: between two calls a server runs so much else that each line is
 * fetched anew. */
typedef struct recorder_object {
    PyObject_HEAD const sp_ring_control *control; /* the ring's, or one that never records */
    hook_sources *sources;
    PyObject *expect;
    hook_key *expected; /* SP_HOOK_EXPECTED on whole cache lines of expected_memory, made with the first expect */
    uint32_t *calls;    /* of each group */
    size_t calls_size;
    unsigned forks;      /* of the process when it was made: a child does not write
                     into its parent's ring */
    uint32_t generation; /* control's value of the last recorded call: another one
                          restarts the calls' numbers */
    uint32_t context;    /* bits that hold whatever the sources say */
    uint32_t capturing;  /* number of the thread between a graph's begin and its end; 0: none */
    unsigned forgotten;  /* times */
    sp_ring ring;        /* map is NULL: closed */
    hook_type type[SP_HOOK_TYPES];
    unsigned type_next;
    core_state *state;
    uint32_t graph_now, graph_label;
    uint32_t site_count, timer_count;
    bool pending; /* an alarm of a new kind */
    hook_alarm lost[SP_HOOK_LOST];
    unsigned lost_count;
    PyObject *path, *timer, *reported, *skipped;
    PyObject *ids[SP_NAMED_COUNT];   /* dicts: text to id */
    PyObject *texts[SP_NAMED_COUNT]; /* lists: text by id, 0 is "" */
    PyObject *outer;                 /* list of code objects that open calls */
    struct {
        PyObject *text; /* held */
        uint16_t id;
    } group[SP_HOOK_GROUPS];
    hook_dtype dtype[16];
    unsigned dtype_next;
    hook_code *code; /* SP_HOOK_CODES, made when a site is first asked for */
    void *expected_memory;
    hook_graphs graphs;
    PyObject *attribute[SP_HOOK_ATTRIBUTES];
} recorder_object;

typedef struct hook_kernel {
    PyObject *result; /* held: an object, or a tuple of the first ones of a tuple */
    uint8_t id;
} hook_kernel;

/* A first argument whose group is known: its name is read once, until the recorder forgets. A weak reference says that it is still the same
 * object at that address. */
typedef struct hook_owner {
    PyObject *weak; /* held, or NULL */
    unsigned at;    /* the recorder's `forgotten` then */
    uint16_t group;
} hook_owner;

/* The first lines are what a call looks at, as in a recorder. */
typedef struct wrapper_object {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *original;
    recorder_object *recorder;
    Py_ssize_t argument;
    int path, dry;
    uint16_t group; /* where it is not read from the first argument; 0: not known */
    uint8_t entry, op;
    PyObject *chooser; /* which(bool) -> the group's name, or NULL */
    Py_ssize_t kernels;
    hook_name unless;
    hook_owner owner[SP_HOOK_OWNERS]; /* by their addresses */
    PyObject *through;                /* tuple of code objects, or NULL */
    PyObject *keyword;                /* the tensor's, or NULL */
    PyObject *which_keyword;          /* of the argument that the chooser is asked with, or NULL */
    hook_name group_name;
    hook_kernel *kernel;
    Py_ssize_t which;
    uint16_t chosen[2]; /* what the chooser said; 0: not asked */
    unsigned chosen_at; /* the recorder's `forgotten` then */
    int event;          /* of a GraphWrapper */
    PyObject *weak;
} wrapper_object;

/* One open call of one thread. */
typedef struct hook_open {
    recorder_object *recorder;
    sp_record record;
    uint32_t columns, generation;
    int inside;      /* inner calls that are running */
    bool marked;     /* one of them has ended and had said which path */
    uint8_t kernel;  /* the expected path's */
    hook_key *known; /* where the expected path was remembered, or NULL */
} hook_open;

typedef struct hook_thread {
    int depth;
    bool ours; /* code that we called is running: what it calls is not recorded */
    uint32_t number;
    unsigned forks;      /* of the process when the number was asked for, which a fork makes it be again */
    uint32_t generation; /* the last one in which no unseen call was open on this
                          thread */
    const recorder_object *of;
    hook_open open[SP_HOOK_DEPTH];
} hook_thread;

/* Where a table of SP_HOOK_OWNERS rows has this object. */
static inline unsigned sp_hook_place(const PyObject *object) {
    return ((uintptr_t)object >> 6 ^ (uintptr_t)object >> 12) % SP_HOOK_OWNERS;
}

/* What a weak reference refers to, borrowed; NULL: it is gone, or about to go: what nobody holds any more can still be referred to while
 * other objects' finalizers run. */
static inline PyObject *sp_hook_referent(const PyObject *weak) {
    PyObject *object = ((const PyWeakReference *)weak)->wr_object;
    return object != Py_None && Py_REFCNT(object) > 0 ? object : NULL;
}

/* The argument at this position, or of this name; borrowed, NULL where it was not given. */
static inline PyObject *sp_hook_argument(Py_ssize_t at, PyObject *name, PyObject *const *args, Py_ssize_t count,
                                         PyObject *keywords) {
    if (at >= 0 && at < count) return args[at];
    Py_ssize_t named = keywords && name ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *given = PyTuple_GET_ITEM(keywords, i);
        if (given == name || PyUnicode_Compare(given, name) == 0) return args[count + i];
    }
    return NULL;
}

/* core_hook_thread.c */
hook_thread *sp_hook_thread(void);
unsigned sp_hook_forks(void);

/* core_hook_call.c */
PyObject *sp_hook_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords);
uint64_t sp_hook_write(recorder_object *r, sp_record *record, hook_key *known); /* counts it, decides about an alarm,
                                              numbers it; its seq. known may be NULL */

/* Drops an exception; nothing was pending before. An interrupt that came meanwhile is the caller's: it comes again. */
static inline void sp_hook_drop(void) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    PyErr_Clear();
}

/* What failed is dropped and counted. */
SP_RARE void sp_hook_failed(recorder_object *r);

/* core_hook_facts.c */
bool sp_hook_facts(recorder_object *r, PyObject *tensor, hook_open *open); /* false: it could not be read, and that was counted */
int sp_hook_facts_init(recorder_object *r);                                /* -1 with an exception */
void sp_hook_facts_clear(recorder_object *r);

/* core_hook_context.c */
bool sp_hook_name_parse(PyObject *text, hook_name *name); /* false with an exception */
void sp_hook_name_clear(hook_name *name);
PyObject *sp_hook_name_get(const hook_name *name, PyObject *of);
bool sp_hook_is_true(const hook_name *name, PyObject *of, recorder_object *r);
uint32_t sp_hook_context(recorder_object *r, uint32_t thread, PyObject *first);
bool sp_hook_sources_set(recorder_object *r, PyObject *sources);
void sp_hook_sources_clear(recorder_object *r);
int sp_hook_sources_traverse(recorder_object *r, visitproc visit, void *arg);
uint16_t sp_hook_group(recorder_object *r, wrapper_object *w, PyObject *const *args, Py_ssize_t count, PyObject *keywords);

/* core_hook_expect.c */
void sp_hook_expected(recorder_object *r, hook_open *open, bool direct, PyObject *first); /* sets it in the record */
bool sp_hook_expect_set(recorder_object *r, PyObject *expect);                            /* false with an exception */
void sp_hook_forget(recorder_object *r);

/* core_hook_site.c */
uint16_t sp_hook_site(recorder_object *r);
bool sp_hook_stack_has(recorder_object *r, PyObject *codes); /* a list or tuple of code objects */
void sp_hook_sites_forget(recorder_object *r);               /* the table stays: a call may be looking into it */
void sp_hook_sites_clear(recorder_object *r);

/* core_hook_names.c */
bool sp_hook_intern(recorder_object *r, sp_named kind, PyObject *text, uint32_t *id); /* false with an exception */
PyObject *sp_hook_text(const recorder_object *r, sp_named kind, uint32_t id);         /* borrowed */

/* core_hook_graph.c */
PyObject *sp_hook_graph_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords);
extern PyType_Spec sp_graph_wrapper_spec;

/* core_hook_wrapper.c: what both kinds of wrapper are, by their first fields */
extern PyType_Spec sp_wrapper_spec;
extern PyMethodDef sp_wrapper_methods[];
extern PyMemberDef sp_wrapper_members[];
void sp_wrapper_dealloc(PyObject *self);
int sp_wrapper_traverse(PyObject *self, visitproc visit, void *arg);
int sp_wrapper_clear(PyObject *self);
PyObject *sp_wrapper_bind(PyObject *self, PyObject *instance, PyObject *owner);
PyObject *sp_wrapper_getattro(PyObject *self, PyObject *name);
PyObject *sp_wrapper_repr(PyObject *self);

#define SP_WRAPPER_SLOTS                                                                                            \
    {Py_tp_dealloc, sp_wrapper_dealloc}, {Py_tp_traverse, sp_wrapper_traverse}, {Py_tp_clear, sp_wrapper_clear},    \
        {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, sp_wrapper_bind}, {Py_tp_getattro, sp_wrapper_getattro}, \
        {Py_tp_repr, sp_wrapper_repr}, {Py_tp_methods, sp_wrapper_methods}, {                                       \
        Py_tp_members, sp_wrapper_members                                                                           \
    }
/* A method descriptor: the interpreter hands over `self` as the first argument
 * and makes no bound method. */
#define SP_WRAPPER_FLAGS                                                                               \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL | \
     Py_TPFLAGS_METHOD_DESCRIPTOR)

/* core_hook_recorder.c, core_hook_methods.c */
const sp_ring_control *sp_hook_never(void); /* what a closed recorder looks at: it never records */
extern PyType_Spec sp_recorder_spec;
extern PyMethodDef sp_recorder_methods[];
recorder_object *sp_recorder_of(PyObject *object,
                                const core_state *state); /* NULL with an exception where it is none, or closed */
void sp_recorder_close(recorder_object *r);

/* core_hook_alarms.c */
PyObject *sp_hook_alarms(PyObject *self, PyObject *unused);
void sp_hook_alarm_lost(recorder_object *r, const sp_record *record); /* of a kind that found no row; runs no Python */

extern PyMethodDef sp_hook_methods[];    /* core_hook_read.c */
int sp_add_hook_lists(PyObject *module); /* core_hook_lists.c */

#endif
