/* Which libnccl, and its symbols. See nccl.h.
 * Invariant: the table below is written under its lock, and an entry that was handed out never changes. */
#include "nccl.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SONAME "libnccl.so.2"
#define REMEDY "install nvidia-nccl-cu13, or set SGLANG_NCCL_SO_PATH to a " SONAME

enum { LIBRARIES = 4 };

static struct {
    pthread_mutex_t lock;
    int count;
    sp_nccl_api opened[LIBRARIES];
    char wheel[512];
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct symbol {
    const char *name;
    size_t at; /* in sp_nccl_api */
    bool needed;
} symbols[] = {
#define X(name, needed) {#name, offsetof(sp_nccl_api, name), needed},
    SP_NCCL_SYMBOLS(X)
#undef X
};

void sp_nccl_version_text(int version, char text[16]) {
    int major = version < 10000 ? version / 1000 : version / 10000;
    int rest = version < 10000 ? version % 1000 : version % 10000;
    snprintf(text, 16, "%d.%d.%d", major % 100, rest / 100, rest % 100);
}

static sp_status resolve(sp_nccl_api *api, const char *name, const char *from) {
    const char *missing = NULL;
    int more = -1;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(api->library, symbols[i].name);
        memcpy((char *)api + symbols[i].at, &symbol, sizeof symbol);
        if (symbol || !symbols[i].needed) continue;
        if (!missing) missing = symbols[i].name;
        more++;
    }
    if (missing)
        return sp_fail(SP_UNAVAILABLE,
                       "NCCL %s: %s lacks %s and %d more of its functions: another library, or older than 2.18; " REMEDY, from,
                       name, missing, more);
    ncclResult_t result = api->ncclGetVersion(&api->version);
    if (result) return sp_fail(SP_UNAVAILABLE, "NCCL %s: %s: ncclGetVersion answers %d; " REMEDY, from, name, (int)result);
    Dl_info info;
    void *function;
    memcpy(&function, &api->ncclAllReduce, sizeof function);
    bool known = dladdr(function, &info) && info.dli_fname;
    snprintf(api->path, sizeof api->path, "%s", known ? info.dli_fname : name);
    return SP_OK;
}

/* Called with the lock held. `from` says who named the file. */
static sp_status open_at(const char *name, const char *from, int flags, const sp_nccl_api **api) {
    sp_nccl_api found;
    memset(&found, 0, sizeof found);
    found.library = dlopen(name, RTLD_NOW | RTLD_LOCAL | flags);
    if (!found.library) {
        const char *why = dlerror();
        return sp_fail(SP_UNAVAILABLE, "NCCL %s: cannot open %s (%.200s); " REMEDY, from, name, why ? why : "it is gone");
    }
    for (int i = 0; i < table.count; i++)
        if (table.opened[i].library == found.library) {
            dlclose(found.library); /* one reference is enough; it stays open */
            *api = &table.opened[i];
            return SP_OK;
        }
    sp_status status = resolve(&found, name, from);
    if (!status && table.count == LIBRARIES)
        status = sp_fail(SP_UNAVAILABLE, "NCCL %s: %s would be the fifth libnccl in this process: use one", from, name);
    if (status) {
        dlclose(found.library);
        return status;
    }
    table.opened[table.count] = found;
    *api = &table.opened[table.count++];
    return SP_OK;
}

static int note_loaded(struct dl_phdr_info *info, size_t size, void *path) {
    (void)size;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!slash || strncmp(slash + 1, "libnccl.so", strlen("libnccl.so")) != 0) return 0;
    snprintf(path, sizeof table.wheel, "%s", info->dlpi_name);
    return 1;
}

static sp_status find(const char *asked, const sp_nccl_api **api) {
    char loaded[sizeof table.wheel] = "";
    if (asked) return open_at(asked, "as asked", 0, api);
    if (dl_iterate_phdr(note_loaded, loaded)) return open_at(loaded, "of this process", RTLD_NOLOAD, api);
    const char *wish = getenv("SGLANG_NCCL_SO_PATH");
    if (wish && *wish) return open_at(wish, "of SGLANG_NCCL_SO_PATH", 0, api);
    return *table.wheel ? open_at(table.wheel, "of the wheel", 0, api) : open_at(SONAME, "by its name", 0, api);
}

sp_status sp_nccl_load(const char *asked, const sp_nccl_api **api) {
    pthread_mutex_lock(&table.lock);
    sp_status status = find(asked && *asked ? asked : NULL, api);
    pthread_mutex_unlock(&table.lock);
    return status;
}

sp_status sp_nccl_wheel(const char *path) {
    size_t length = path ? strlen(path) : 0;
    if (length >= sizeof table.wheel)
        return sp_fail(SP_INVALID, "the path of libnccl has %zu bytes: fewer than %zu", length, sizeof table.wheel);
    pthread_mutex_lock(&table.lock);
    memcpy(table.wheel, path ? path : "", length + 1);
    pthread_mutex_unlock(&table.lock);
    return SP_OK;
}
