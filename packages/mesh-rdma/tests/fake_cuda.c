/* A fake GPU driver whose device memory consists of files, for tests on machines without a GPU.
 *
 * Device addresses are not mapped, so a processor access to one kills the process, as on a real
 * machine. The driver refuses the same calls as the real one, and records calls that are undefined
 * behavior of the real one: see `violate`. Copies run asynchronously, in one thread per stream.
 * Processes with the same folder (FAKE_CUDA) share the devices.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 101,
       NO_CONTEXT = 201, MAPPED = 208, NO_PEER = 217, BAD_HANDLE = 400,
       REGISTERED = 712, NOT_REGISTERED = 713 };
enum { DEVICES = 2, ENTRIES = 4096, USERS = 16, RANGES = 4096 };
typedef unsigned long long Pointer;

/* The table shared by all processes: one entry per allocation, including freed ones. */
struct entry { int is_live, device, owner, users[USERS]; size_t size; };
struct table { int count; struct entry entries[ENTRIES]; };

/* An allocation that this process has created or mapped. */
struct range { char *begin; size_t size; char *bytes; int id, device, is_import, is_vmm; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct table *table;
static int table_file, owner;
static char folder[512];
static struct range ranges[RANGES];
static int is_active[DEVICES];
static void *locked[RANGES];
static __thread long current[16];
static __thread int depth;

struct stream;
static struct stream *null_stream;

static void violate(const char *words, ...) {
    char path[600], line[300];
    snprintf(path, sizeof path, "%s/violations", folder);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    va_list list;
    va_start(list, words);
    int length = vsnprintf(line, sizeof line, words, list);
    va_end(list);
    line[length++] = '\n';
    if (write(file, line, length) < 0) abort();
    close(file);
}

/* The primary context is a number. As with the real driver, a forked child has no driver. */
static int begin(void) {
    if (getpid() != owner) return 0;
    pthread_mutex_lock(&lock);
    flock(table_file, LOCK_EX);
    return 1;
}

static int end(int code) {
    flock(table_file, LOCK_UN);
    pthread_mutex_unlock(&lock);
    return code;
}

/* Loading does not initialize the driver: a program calls this function, as torch does. */
int cuInit(unsigned flags) {
    (void)flags;
    char path[600];
    snprintf(folder, sizeof folder, "%s", getenv("FAKE_CUDA"));
    snprintf(path, sizeof path, "%s/table", folder);
    table_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (table_file < 0 || ftruncate(table_file, sizeof *table)) return NO_DEVICE;
    table = mmap(0, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, table_file, 0);
    memset(ranges, 0, sizeof ranges);
    memset(is_active, 0, sizeof is_active);
    memset(locked, 0, sizeof locked);
    null_stream = 0;
    pthread_mutex_init(&lock, 0);
    owner = getpid();
    return OK;
}

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {INVALID, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {NO_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {NO_PEER, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {BAD_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already registered"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not registered"},
};

static int words_of(int code, const char **found, int is_text) {
    *found = 0;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code) *found = is_text ? ERRORS[i].text : ERRORS[i].name;
    return *found ? OK : INVALID;
}

int cuGetErrorName(int code, const char **name) { return words_of(code, name, 0); }
int cuGetErrorString(int code, const char **text) { return words_of(code, text, 1); }

int cuDeviceGetCount(int *count) {
    if (getpid() != owner) return NOT_INITIALIZED;
    const char *seen = getenv("FAKE_CUDA_DEVICES");
    *count = seen ? atoi(seen) : DEVICES;
    return OK;
}

int cuDeviceGetUuid(char *uuid, int device) {
    if (device < 0 || device >= DEVICES) return NO_DEVICE;
    memset(uuid, 0, 16);
    snprintf(uuid, 16, "fake gpu %d", device);
    return OK;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (getpid() != owner) return NOT_INITIALIZED;
    *flags = 0;
    *active = is_active[device];
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (getpid() != owner) return NOT_INITIALIZED;
    if (device < 0 || device >= DEVICES) return NO_DEVICE;
    is_active[device] = 1;
    *context = (void *)(long)(device + 1);
    return OK;
}

int cuCtxPushCurrent_v2(void *context) {
    if (!context || depth == 16) return NO_CONTEXT;
    current[depth++] = (long)context;
    return OK;
}

int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return NO_CONTEXT;
    *context = (void *)current[--depth];
    return OK;
}

static int device_now(void) { return depth ? (int)current[depth - 1] - 1 : -1; }

static struct range *range_of(Pointer address) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].begin && (char *)address >= ranges[i].begin &&
            (char *)address < ranges[i].begin + ranges[i].size)
            return &ranges[i];
    return 0;
}

/* Maps the bytes at an address that only this driver knows, and reserves inaccessible addresses. */
static struct range *map(int id, size_t size, int device) {
    char path[600];
    snprintf(path, sizeof path, "%s/%d", folder, id);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, size)) return 0;
    for (int i = 0; i < RANGES; i++) {
        struct range *r = &ranges[i];
        if (r->begin) continue;
        r->bytes = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        r->begin = mmap(0, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        close(file);
        r->size = size, r->id = id, r->device = device, r->is_import = r->is_vmm = 0;
        return r;
    }
    close(file);
    return 0;
}

static void unmap(struct range *r) {
    munmap(r->bytes, r->size);
    munmap(r->begin, r->size);
    memset(r, 0, sizeof *r);
}

static int allocate(Pointer *address, size_t size, int is_vmm) {
    int device = device_now();
    if (device < 0) return NO_CONTEXT;
    if (!begin()) return NOT_INITIALIZED;
    int id = table->count < ENTRIES ? table->count++ : -1;
    struct range *r = id < 0 ? 0 : map(id, size, device);
    if (!r) return end(NO_MEMORY);
    table->entries[id] = (struct entry){.is_live = 1, .device = device, .owner = owner, .size = size};
    r->is_vmm = is_vmm;
    *address = (Pointer)r->begin;
    return end(OK);
}

int cuMemAlloc_v2(Pointer *address, size_t size) { return allocate(address, size, 0); }
/* Memory of expandable segments, which the real driver creates with cuMemCreate and cuMemMap. */
int fake_vmm_alloc(Pointer *address, size_t size) { return allocate(address, size, 1); }

int cuMemFree_v2(Pointer address) {
    if (!begin()) return NOT_INITIALIZED;
    struct range *r = range_of(address);
    if (!r || r->begin != (char *)address || r->is_import) return end(INVALID);
    struct entry *e = &table->entries[r->id];
    for (int i = 0; i < USERS; i++)
        if (e->users[i] && !kill(e->users[i], 0))
            violate("allocation %d was freed while process %d maps it", r->id, e->users[i]);
    char path[600];
    snprintf(path, sizeof path, "%s/%d", folder, r->id);
    unlink(path);
    e->is_live = 0;
    unmap(r);
    return end(OK);
}

int cuPointerGetAttribute(void *found, int which, Pointer address) {
    if (!begin()) return NOT_INITIALIZED;
    struct range *r = range_of(address);
    if (!r) return end(INVALID);
    switch (which) {
    case 2: *(unsigned *)found = 2; break;
    case 7: *(uint64_t *)found = r->id + 1; break;
    case 9: *(int *)found = r->device; break;
    default: return end(INVALID);
    }
    return end(OK);
}

int cuMemGetAddressRange_v2(Pointer *base, size_t *size, Pointer address) {
    if (!begin()) return NOT_INITIALIZED;
    struct range *r = range_of(address);
    if (!r) return end(INVALID);
    *base = (Pointer)r->begin;
    *size = r->size;
    return end(OK);
}

struct handle { char reserved[64]; };

int cuIpcGetMemHandle(struct handle *handle, Pointer address) {
    if (!begin()) return NOT_INITIALIZED;
    struct range *r = range_of(address);
    if (!r || r->is_vmm || r->is_import) return end(INVALID);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, "fake", 4);
    memcpy(handle->reserved + 4, &r->id, sizeof r->id);
    return end(OK);
}

int cuIpcOpenMemHandle_v2(Pointer *address, struct handle handle, unsigned flags) {
    int id, device = device_now();
    if (device < 0) return NO_CONTEXT;
    memcpy(&id, handle.reserved + 4, sizeof id);
    if (flags != 1 || memcmp(handle.reserved, "fake", 4) || !begin()) return INVALID;
    if (id < 0 || id >= table->count || !table->entries[id].is_live) return end(INVALID);
    struct entry *e = &table->entries[id];
    if (e->owner == owner) return end(NO_CONTEXT);
    if (e->device != device && getenv("FAKE_CUDA_NO_PEERS")) return end(NO_PEER);
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].begin && ranges[i].id == id && ranges[i].device == device) return end(MAPPED);
    struct range *r = map(id, e->size, device);
    if (!r) return end(NO_MEMORY);
    r->is_import = 1;
    for (int i = 0; i < USERS; i++)
        if (!e->users[i]) { e->users[i] = owner; break; }
    *address = (Pointer)r->begin;
    return end(OK);
}

int cuIpcCloseMemHandle(Pointer address) {
    if (!begin()) return NOT_INITIALIZED;
    struct range *r = range_of(address);
    if (!r || !r->is_import || r->begin != (char *)address) return end(INVALID);
    struct entry *e = &table->entries[r->id];
    for (int i = 0; i < USERS; i++)
        if (e->users[i] == owner) { e->users[i] = 0; break; }
    unmap(r);
    return end(OK);
}

/* A stream executes its tasks in order, in a separate thread. */
struct event { long marked, done; pthread_mutex_t lock; pthread_cond_t changed; };
struct task { Pointer to, from; size_t size; struct event *mark, *wait; long number; struct task *next; };
struct stream { pthread_t thread; pthread_mutex_t lock; pthread_cond_t changed; struct task *first, **last; int is_over; };

static char *bytes_of(Pointer address, size_t size) {
    struct range *r = range_of(address);
    if (!r) return (char *)address;
    if ((char *)address + size > r->begin + r->size) {
        violate("a copy of %zu bytes leaves allocation %d", size, r->id);
        return 0;
    }
    if (!table->entries[r->id].is_live) violate("a copy of freed allocation %d", r->id);
    return r->bytes + ((char *)address - r->begin);
}

static void happen(struct event *event, long number) {
    pthread_mutex_lock(&event->lock);
    if (event->done < number) event->done = number;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static void await(struct event *event, long number) {
    pthread_mutex_lock(&event->lock);
    while (event->done < number) pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

static void run_task(struct task *task) {
    if (task->wait) await(task->wait, task->number);
    if (task->mark) happen(task->mark, task->number);
    if (!task->size) return;
    const char *pause = getenv("FAKE_CUDA_PAUSE_US");
    if (pause) usleep(atoi(pause));
    if (!begin()) return;
    char *to = bytes_of(task->to, task->size), *from = bytes_of(task->from, task->size);
    end(OK);
    if (to && from) memmove(to, from, task->size);
}

static void *run_stream(void *argument) {
    struct stream *stream = argument;
    for (;;) {
        pthread_mutex_lock(&stream->lock);
        while (!stream->first && !stream->is_over)
            pthread_cond_wait(&stream->changed, &stream->lock);
        struct task *task = stream->first;
        if (!task) break;
        stream->first = task->next;
        if (!stream->first) stream->last = &stream->first;
        pthread_mutex_unlock(&stream->lock);
        run_task(task);
        free(task);
    }
    pthread_mutex_unlock(&stream->lock);
    return 0;
}

int cuStreamCreate(void **made, unsigned flags) {
    (void)flags;
    if (device_now() < 0) return NO_CONTEXT;
    struct stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->lock, 0);
    pthread_cond_init(&stream->changed, 0);
    stream->last = &stream->first;
    pthread_create(&stream->thread, 0, run_stream, stream);
    *made = stream;
    return OK;
}

int cuStreamDestroy_v2(void *destroyed) {
    struct stream *stream = destroyed;
    pthread_mutex_lock(&stream->lock);
    stream->is_over = 1;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, 0);
    return OK;
}

static int put(void *on, struct task task) {
    if (device_now() < 0) return NO_CONTEXT;
    if (!on) {
        if (!null_stream) cuStreamCreate((void **)&null_stream, 0);
        on = null_stream;
    }
    struct stream *stream = on;
    struct task *copy = malloc(sizeof *copy);
    *copy = task;
    pthread_mutex_lock(&stream->lock);
    *stream->last = copy;
    stream->last = &copy->next;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return OK;
}

int cuEventCreate(void **made, unsigned flags) {
    (void)flags;
    if (device_now() < 0) return NO_CONTEXT;
    struct event *event = calloc(1, sizeof *event);
    pthread_mutex_init(&event->lock, 0);
    pthread_cond_init(&event->changed, 0);
    *made = event;
    return OK;
}

/* An event is never freed, because a task may still mark it; the real driver waits for that. */
int cuEventDestroy_v2(void *event) { return event ? OK : BAD_HANDLE; }

int cuEventRecord(void *marked, void *stream) {
    struct event *event = marked;
    pthread_mutex_lock(&event->lock);
    long number = ++event->marked;
    pthread_mutex_unlock(&event->lock);
    return put(stream, (struct task){.mark = event, .number = number});
}

int cuStreamWaitEvent(void *stream, void *awaited, unsigned flags) {
    (void)flags;
    struct event *event = awaited;
    return put(stream, (struct task){.wait = event, .number = event->marked});
}

int cuEventSynchronize(void *awaited) {
    struct event *event = awaited;
    await(event, event->marked);
    return OK;
}

int cuMemcpyAsync(Pointer to, Pointer from, size_t size, void *stream) {
    if (getpid() != owner) return NOT_INITIALIZED;
    return put(stream, (struct task){.to = to, .from = from, .size = size});
}

int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    (void)size, (void)flags;
    if (!begin()) return NOT_INITIALIZED;
    int free_place = -1;
    for (int i = 0; i < RANGES; i++) {
        if (locked[i] == address) return end(REGISTERED);
        if (!locked[i]) free_place = i;
    }
    if (free_place < 0) return end(NO_MEMORY);
    locked[free_place] = address;
    return end(OK);
}

int cuMemHostUnregister(void *address) {
    if (!begin()) return NOT_INITIALIZED;
    for (int i = 0; i < RANGES; i++)
        if (locked[i] == address) {
            locked[i] = 0;
            return end(OK);
        }
    return end(NOT_REGISTERED);
}
