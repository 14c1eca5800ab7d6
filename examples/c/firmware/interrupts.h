/* Interrupts that devices raise by messages (MSI-X), of QEMU's `virt` for RISC-V. They end a sleep; no handler runs. */
#ifndef INTERRUPTS_H
#define INTERRUPTS_H

#include <stdint.h>

/* A write to this address, of this number, raises an interrupt. */
struct message {
    uint64_t address;
    uint32_t data;
};

/* Lets an interrupt come, from 1 to 63, and returns the message that raises it. */
struct message open_interrupt(uint32_t number);
/* Sleeps until an interrupt that was opened comes, at the latest at `deadline` (nanoseconds), and returns how many came. One that came
 * before is there at once. */
uint32_t sleep_until(uint64_t deadline);

#endif
