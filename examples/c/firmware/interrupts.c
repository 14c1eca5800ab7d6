/* The interrupt file of hart 0 in M-mode (RISC-V AIA), and its timer. The addresses are those of QEMU's hw/riscv/virt.c. */
#include "interrupts.h"

#include "machine.h"

#define IMSIC 0x24000000u
#define MTIMECMP 0x02004000u
#define NANOSECONDS_OF_A_TICK 100

/* Interrupts of M-mode in `mie`: of the timer, and external ones. */
#define TIMER (1u << 7)
#define EXTERNAL (1u << 11)

/* Registers of the interrupt file, reached through miselect (0x350) and mireg (0x351): assemblers do not know these names yet. */
#define DELIVERY 0x70
#define THRESHOLD 0x72
#define ENABLE 0xc0

static void select(uint64_t which)
{
    __asm__ volatile("csrw 0x350, %0" : : "r"(which));
}

struct message open_interrupt(uint32_t number)
{
    struct message message = {IMSIC, number};
    select(DELIVERY);
    __asm__ volatile("csrw 0x351, %0" : : "r"(1ul));
    select(THRESHOLD);
    __asm__ volatile("csrw 0x351, zero");
    select(ENABLE);
    __asm__ volatile("csrs 0x351, %0" : : "r"(1ul << (number & 63)));
    /* Held back by mstatus, as the start-up code left it: it ends the sleep, and traps nowhere. */
    __asm__ volatile("csrs mie, %0" : : "r"((uint64_t)EXTERNAL));
    return message;
}

uint32_t sleep_until(uint64_t deadline)
{
    uint32_t count = 0;
    uint64_t top;
    *quad_at(MTIMECMP) = deadline / NANOSECONDS_OF_A_TICK;
    __asm__ volatile("csrs mie, %0\n\twfi\n\tcsrc mie, %0" : : "r"((uint64_t)TIMER) : "memory");
    *quad_at(MTIMECMP) = UINT64_MAX;
    for (;;) {
        /* mtopei: takes the interrupt that comes first; 0 if none is left. */
        __asm__ volatile("csrrw %0, 0x35c, zero" : "=r"(top));
        if (top == 0)
            return count;
        count++;
    }
}
