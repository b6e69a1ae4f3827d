// Answers a program's question of what its processor is (cpuid) as another processor would. Loaded before all else
// (LD_PRELOAD), in every process of a run: Linux lets a processor that can do it fault at a cpuid (arch_prctl), and the
// handler of the fault puts the answer into the registers. REHEARSED_CPUID holds the rules, each
// leaf:subleaf:register:clear:set in hexadecimal; what no rule names is answered as it is.
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SET_CPUID = 0x1012, MOST = 128 };
static const unsigned ANY = 0xffffffff;
struct rule { unsigned leaf, subleaf, reg, clear, set; };
static struct rule rules[MOST];
static int count, answering;
static struct sigaction theirs;  // what the program itself does at a fault of another kind
static int (*system_sigaction)(int, const struct sigaction *, struct sigaction *);

static void ask(unsigned leaf, unsigned subleaf, unsigned out[4]) {
    syscall(SYS_arch_prctl, SET_CPUID, 1);
    __cpuid_count(leaf, subleaf, out[0], out[1], out[2], out[3]);
    syscall(SYS_arch_prctl, SET_CPUID, 0);
    for (int i = 0; i < count; i++)
        if (rules[i].leaf == leaf && (rules[i].subleaf == subleaf || rules[i].subleaf == ANY))
            out[rules[i].reg] = (out[rules[i].reg] & ~rules[i].clear) | rules[i].set;
}

static void fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    if (info->si_code == SI_KERNEL && at[0] == 0x0f && at[1] == 0xa2) {
        unsigned out[4];
        ask((unsigned)registers[REG_RAX], (unsigned)registers[REG_RCX], out);
        registers[REG_RAX] = out[0];
        registers[REG_RBX] = out[1];
        registers[REG_RCX] = out[2];
        registers[REG_RDX] = out[3];
        registers[REG_RIP] += 2;
    } else if (theirs.sa_flags & SA_SIGINFO) {
        theirs.sa_sigaction(number, info, context);
    } else if (theirs.sa_handler == SIG_DFL || theirs.sa_handler == SIG_IGN) {
        struct sigaction end = {.sa_handler = SIG_DFL};
        system_sigaction(number, &end, NULL);  // the fault comes again, and ends the process
    } else {
        theirs.sa_handler(number);
    }
}

int sigaction(int number, const struct sigaction *given, struct sigaction *old) {
    if (!system_sigaction) system_sigaction = dlsym(RTLD_NEXT, "sigaction");
    if (number != SIGSEGV || !answering) return system_sigaction(number, given, old);
    struct sigaction before = theirs;
    if (given) theirs = *given;
    if (old) *old = before;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction given = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &given, &old) ? SIG_ERR : old.sa_handler;
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("REHEARSED_CPUID");
    struct sigaction mine = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    int used = 0;
    for (; text && count < MOST; text += used) {
        struct rule *r = &rules[count];
        if (sscanf(text, " %x:%x:%x:%x:%x%n", &r->leaf, &r->subleaf, &r->reg, &r->clear, &r->set, &used) != 5) break;
        count++;
    }
    if (!count) return;
    sigaction(SIGSEGV, &mine, &theirs);
    answering = syscall(SYS_arch_prctl, SET_CPUID, 0) == 0;
}
