/* A stand-in for libnvidia-ml.so.1, for machines without an NVIDIA driver: what stoker says of GPUs is tested through NVML's C interface.
 *
 * Every call reads the file that $NVML_STAND_IN names (tests/fakes/nvml.py writes it), so that a test changes a card while a process looks at it:
 *
 *   init CODE                     what nvmlInit answers (nvml.h: nvmlReturn_t)
 *   gone 0|1                      the driver was unloaded: every call answers DRIVER_NOT_LOADED
 *   card TOTAL USED UTIL POWER_MW THROTTLE_BITS ECC UUID NAME…
 *   process CARD PID BYTES        BYTES -1: not available
 *   modes CARD PERSISTENCE MIG    0, 1; MIG -1: the card has no such mode
 *   driver VERSION CUDA           CUDA as NVML says it: 12040 for 12.4
 *   fail CARD FUNCTION|* CODE
 *   xid NUMBER CARD CODE          events are numbered from 1; each is given once
 *
 * Built with -DOLD_DRIVER it lacks nvmlDeviceGetCurrentClocksEventReasons, as drivers before 535 do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_FOUND = 6, SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10, MOST = 64 };
typedef unsigned long long u64;
typedef struct Card Card;
struct Card {
    u64 total, used, throttle, ecc;
    unsigned util, power_mw;
    int persistence, mig;
    char uuid[96], name[96];
};
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } Process;  /* nvmlProcessInfo_v2_t */
typedef struct { Card *device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;  /* nvmlEventData_t */

static Card cards[MOST];
static Process processes[MOST];
static struct { int card, code; char function[64]; } fails[MOST];
static struct { int number, card; u64 code; } xids[MOST];
static char driver[32];
static int driver_cuda;
static u64 heard[MOST];  /* by card, the types of the events that are asked for */
static int owner[MOST], card_count, process_count, fail_count, xid_count, init_code, gone, open_count, last_xid;

static void look(void) {
    char line[512];
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    card_count = process_count = fail_count = xid_count = init_code = gone = 0;
    if (!file) {
        init_code = NOT_LOADED;
        return;
    }
    strcpy(driver, "570.86.15");
    driver_cuda = 12080;
    while (fgets(line, sizeof line, file)) {
        long long bytes;
        int at, persistence, mig;
        Card *card = &cards[card_count < MOST ? card_count : MOST - 1];
        if (sscanf(line, "init %d", &init_code) == 1 || sscanf(line, "gone %d", &gone) == 1) continue;
        if (sscanf(line, "card %llu %llu %u %u %llu %llu %95s %95[^\n]", &card->total, &card->used, &card->util, &card->power_mw,
                   &card->throttle, &card->ecc, card->uuid, card->name) == 8 && card_count < MOST) {
            card->persistence = 1;
            card->mig = -1;
            card_count++;
        } else if (sscanf(line, "modes %d %d %d", &at, &persistence, &mig) == 3 && at < card_count) {
            cards[at].persistence = persistence;
            cards[at].mig = mig;
        } else if (sscanf(line, "driver %31s %d", driver, &driver_cuda) == 2) continue;
        else if (process_count < MOST && sscanf(line, "process %d %u %lld", &owner[process_count], &processes[process_count].pid, &bytes) == 3)
            processes[process_count++].bytes = (u64)bytes;  /* -1 is NVML_VALUE_NOT_AVAILABLE */
        else if (fail_count < MOST && sscanf(line, "fail %d %63s %d", &fails[fail_count].card, fails[fail_count].function, &fails[fail_count].code) == 3) fail_count++;
        else if (xid_count < MOST && sscanf(line, "xid %d %d %llu", &xids[xid_count].number, &xids[xid_count].card, &xids[xid_count].code) == 3) xid_count++;
    }
    fclose(file);
}

static int answer(Card *card, const char *function) {
    look();
    if (gone) return NOT_LOADED;
    if (!open_count) return UNINITIALIZED;
    for (int i = 0; i < fail_count; i++)
        if (card == &cards[fails[i].card] && (!strcmp(fails[i].function, "*") || !strncmp(fails[i].function, function, strlen(fails[i].function)))) return fails[i].code;
    return SUCCESS;
}

#define ASK(card) do { int code = answer(card, __func__); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    look();
    if (gone || init_code) return gone ? NOT_LOADED : init_code;
    open_count++;
    return SUCCESS;
}
int nvmlShutdown(void) {
    look();
    if (gone) return NOT_LOADED;
    open_count--;
    return SUCCESS;
}
const char *nvmlErrorString(int code) {
    switch (code) {
        case 3: return "Not Supported";
        case 4: return "Insufficient Permissions";
        case 9: return "Driver Not Loaded";
        case 12: return "NVML Shared Library Not Found";
        case 15: return "GPU is lost";
        default: return "Unknown Error";
    }
}
int nvmlDeviceGetCount_v2(unsigned *count) { ASK(NULL); *count = card_count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **device) {
    look();
    if (index >= (unsigned)card_count) return INVALID;
    *device = &cards[index];
    ASK(*device);
    return SUCCESS;
}
static void text(char *to, unsigned size, const char *from) { snprintf(to, size, "%s", from); }
int nvmlDeviceGetUUID(Card *card, char *to, unsigned size) { ASK(card); text(to, size, card->uuid); return SUCCESS; }
int nvmlDeviceGetName(Card *card, char *to, unsigned size) { ASK(card); text(to, size, card->name); return SUCCESS; }
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem; char bus_id[32]; } Pci;  /* nvmlPciInfo_t */
int nvmlDeviceGetPciInfo_v3(Card *card, Pci *to) {
    ASK(card);
    memset(to, 0, sizeof *to);
    to->bus = (unsigned)(card - cards);
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", to->bus);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(Card *card, u64 *to) { ASK(card); to[0] = card->total; to[1] = card->total - card->used; to[2] = card->used; return SUCCESS; }
int nvmlDeviceGetUtilizationRates(Card *card, unsigned *to) { ASK(card); to[0] = card->util; to[1] = card->util / 2;  /* memory: half as busy */ return SUCCESS; }
int nvmlDeviceGetTemperature(Card *card, int sensor, unsigned *to) { (void)sensor; ASK(card); *to = 61; return SUCCESS; }
int nvmlDeviceGetPowerUsage(Card *card, unsigned *to) { ASK(card); *to = card->power_mw; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(Card *card, unsigned *to) { ASK(card); *to = 700000; return SUCCESS; }
int nvmlDeviceGetClockInfo(Card *card, int clock, unsigned *to) { (void)clock; ASK(card); *to = 1980; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Card *card, u64 *to) { ASK(card); *to = card->throttle; return SUCCESS; }
#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(Card *card, u64 *to) { ASK(card); *to = card->throttle; return SUCCESS; }
#endif
int nvmlDeviceGetTotalEccErrors(Card *card, int kind, int counter, u64 *to) { (void)kind; (void)counter; ASK(card); *to = card->ecc; return SUCCESS; }
int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, unsigned *count, Process *to) {
    unsigned found = 0, room = *count;
    ASK(card);
    for (int i = 0; i < process_count; i++)
        if (card == &cards[owner[i]]) {
            if (to && found < room) to[found] = processes[i];
            found++;
        }
    *count = found;
    return found > room ? SMALL : SUCCESS;
}
int nvmlSystemGetDriverVersion(char *to, unsigned size) { ASK(NULL); text(to, size, driver); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { ASK(NULL); *to = driver_cuda; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(Card *card, unsigned *to) { ASK(card); *to = (unsigned)card->persistence; return SUCCESS; }
int nvmlDeviceGetMigMode(Card *card, unsigned *now, unsigned *pending) {
    ASK(card);
    if (card->mig < 0) return 3;  /* NVML_ERROR_NOT_SUPPORTED */
    *now = *pending = (unsigned)card->mig;
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) { ASK(NULL); memset(heard, 0, sizeof heard); *set = &last_xid; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(Card *card, u64 types, void *set) { (void)set; ASK(card); heard[card - cards] = types; return SUCCESS; }
int nvmlEventSetWait_v2(void *set, Event *to, unsigned timeout_ms) {
    (void)set; (void)timeout_ms;
    ASK(NULL);
    for (int i = 0; i < xid_count; i++)
        if (xids[i].number > last_xid && heard[xids[i].card] & 8) {  /* nvmlEventTypeXidCriticalError */
            last_xid = xids[i].number;
            memset(to, 0, sizeof *to);
            to->device = &cards[xids[i].card];
            to->type = 8;
            to->data = xids[i].code;
            return SUCCESS;
        }
    return TIMEOUT;
}
