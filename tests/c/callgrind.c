/* What run.sh counts instructions of: `program NAME CALLS` runs one of the functions below CALLS times between nothing else.
 * Invariant: count_NAME holds exactly the calls; what prepares them stands outside. */
#include "harness.h"

#include "core/ring.h"
#include "core/route.h"
#include "core/space.h"
#include "random_case.h"

#define COUNTED __attribute__((noinline, noclone))

static volatile uint64_t sink;
static uint8_t answers[(1 + 4 * SP_STATES_BASE) * SP_ANSWER_BYTES];

/* A decision of the newest era, over words that a server has. */
COUNTED void count_decide(const sp_ruleset *set, const uint64_t *words, size_t calls);
COUNTED void count_decide(const sp_ruleset *set, const uint64_t *words, size_t calls) {
    for (size_t i = 0; i < calls; i++) sink += sp_decide(set, words[i & 15]).path;
}

/* Every state of an era that has 12,289 of them. */
COUNTED void count_walk(const sp_ruleset *set, size_t calls);
COUNTED void count_walk(const sp_ruleset *set, size_t calls) {
    for (size_t i = 0; i < calls; i++) sp_walk(set, answers);
    sink += answers[7];
}

/* All gates and the rules, with the whole trace. */
COUNTED void count_route(const sp_rules *rules, const sp_case *c, size_t calls);
COUNTED void count_route(const sp_rules *rules, const sp_case *c, size_t calls) {
    sp_route_result result;
    for (size_t i = 0; i < calls; i++) {
        sp_route_call(rules, c, &result);
        sink += result.decision.path;
    }
}

/* The path of one size, as a worker's hot path will ask. */
COUNTED void count_router_path(const sp_router *router, size_t calls);
COUNTED void count_router_path(const sp_router *router, size_t calls) {
    for (size_t i = 0; i < calls; i++) sink += sp_router_path(router, 1 + i * 4096);
}

/* A record in its slot, counted with its kind. */
COUNTED void count_ring_record(sp_ring *ring, size_t calls);
COUNTED void count_ring_record(sp_ring *ring, size_t calls) {
    sp_record r = {.nbytes = 43008, .group = 1, .entry = 1, .path = SP_PATH_CUSTOM};
    for (size_t i = 0; i < calls; i++) {
        r.time_ns = i;
        sink += sp_ring_count(sp_ring_kind(ring, &r), &r) + sp_ring_write(ring, &r);
    }
}

static int ring_record(size_t calls) {
    const sp_ring_shape shape = {1 << 12, 64, 64, 4096};
    char folder[] = "/tmp/sp_count_XXXXXX", path[64];
    sp_ring ring;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/a.ring", folder);
    int failed = sp_ring_create(path, &shape, &(sp_ring_writer){1, ""}, &ring) != SP_OK;
    if (!failed) count_ring_record(&ring, calls);
    sp_ring_close(&ring);
    unlink(path);
    rmdir(folder);
    return failed;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t calls = strtoul(argv[2], NULL, 10);
    sp_facts facts;
    sp_call call;
    sp_facts_init(&facts);
    sp_call_init(&call);
    call.nbytes = 3 * 7168 * 2;
    const sp_release *release = sp_release_find("0.5.9"), *newest = release;
    for (size_t i = 0; i < sp_release_count; i++)
        if (sp_ruleset_named(sp_releases[i].ruleset) > sp_ruleset_named(newest->ruleset)) newest = &sp_releases[i];
    sp_case c = {release, &facts, &call, SP_CTX(IN_CAPTURE) | SP_CTX(STREAM), NULL};
    sp_rules rules = {sp_ruleset_named(release->ruleset), NULL, 0};
    uint64_t words[16];
    for (size_t i = 0; i < 16; i++) words[i] = sp_state_word(1 + i * 761);
    if (!strcmp(argv[1], "decide")) {
        count_decide(sp_ruleset_named(newest->ruleset), words, calls);
    } else if (!strcmp(argv[1], "walk")) {
        count_walk(rules.ruleset, calls);
    } else if (!strcmp(argv[1], "route")) {
        count_route(&rules, &c, calls);
    } else if (!strcmp(argv[1], "router_path")) {
        sp_router router;
        if (sp_router_init(&rules, &c, &router)) return 1;
        count_router_path(&router, calls);
    } else if (!strcmp(argv[1], "ring_record")) {
        return ring_record(calls);
    } else {
        return 2;
    }
    return 0;
}
