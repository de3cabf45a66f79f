/* A tool for NVTX: every range, mark, domain and category of the process as a line of JSON in $NVTX_LOG, with thread and time; of nothing with $NVTX_QUIET.
 *
 * NVTX loads the library that $NVTX_INJECTION64_PATH names at its first call and asks it for InitializeInjectionNvtx2. What is declared here of NVTX's own types is the part that is
 * used, in its published layout. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    int64_t payload;
    int32_t message_type;
    const char *message; /* text, or what register_string made */
} attributes_t;

typedef struct {
    size_t size;
    int (*table)(int module, void ****table, unsigned int *size);
} callbacks_t;

static int log_file = -1, quiet;
static uint64_t last_range;

static void say(const char *op, const char *domain, uint64_t range, const attributes_t *a, const char *text) {
    if (quiet) return;
    struct timespec now;
    char line[2048];
    clock_gettime(CLOCK_MONOTONIC, &now);
    int n = snprintf(
        line, sizeof line,
        "{\"op\":\"%s\",\"domain\":\"%s\",\"pid\":%d,\"thread\":%ld,\"ns\":%lld,\"range\":%llu,\"message\":\"%s\","
        "\"category\":%u,\"color\":%u,\"payload\":%lld}\n",
        op, domain ? domain : "", getpid(), syscall(SYS_gettid), now.tv_sec * 1000000000LL + now.tv_nsec,
        (unsigned long long)range, text ? text : a && a->message ? a->message : "", a ? a->category : 0,
        a ? a->color : 0, a && a->payload_type ? (long long)a->payload : -1LL);
    if (n > 0 && write(log_file, line, (size_t)n) < 0) abort();
}

static void *domain_create(const char *name) {
    say("domain", name, 0, NULL, NULL);
    return strdup(name);
}
static void domain_destroy(void *domain) { (void)domain; }
static void *register_string(void *domain, const char *text) {
    say("string", domain, 0, NULL, text);
    return strdup(text);
}
static void name_category(void *domain, uint32_t category, const char *name) {
    attributes_t a = {.category = category};
    say("category", domain, 0, &a, name);
}
static void mark(void *domain, const attributes_t *a) { say("mark", domain, 0, a, NULL); }
static uint64_t start(void *domain, const attributes_t *a) {
    uint64_t range = __atomic_add_fetch(&last_range, 1, __ATOMIC_RELAXED);
    say("start", domain, range, a, NULL);
    return range;
}
static void end(void *domain, uint64_t range) { say("end", domain, range, NULL, NULL); }
static int push(void *domain, const attributes_t *a) {
    say("push", domain, 0, a, NULL);
    return 0;
}
static int pop(void *domain) {
    say("pop", domain, 0, NULL, NULL);
    return 0;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const callbacks_t *callbacks = export_table(1);
    void ***table = NULL;
    unsigned int size = 0;
    const char *path = getenv("NVTX_LOG");
    if (!path || !callbacks || !callbacks->table(5, &table, &size)) return 0; /* 5: the functions that take a domain */
    quiet = getenv("NVTX_QUIET") != NULL;
    log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log_file < 0) return 0;
    void *ours[] = {NULL, (void *)mark, (void *)start, (void *)end, (void *)push, (void *)pop, NULL, NULL,
                    (void *)name_category, NULL, (void *)register_string, NULL, (void *)domain_create, NULL,
                    (void *)domain_destroy};
    for (unsigned int i = 0; i < size && i < sizeof ours / sizeof *ours; i++)
        if (ours[i] && table[i]) *table[i] = ours[i];
    return 1;
}
