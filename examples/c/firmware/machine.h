/* QEMU's `virt` for RISC-V: time, serial line, power-off, PCI functions, memory. Another board has another machine.c. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Pages of a card's firmware, at most: 64 MiB. A ConnectX-4 Lx wanted 12,874 from Linux. */
#define FIRMWARE_PAGES 16384

/* A card, and the pages that its firmware has. */
struct card {
    volatile uint8_t *bar;
    size_t bar_size;
    uint64_t first_page;
    uint8_t given[FIRMWARE_PAGES];
    /* Where the search for a free page begins. */
    uint32_t next;
    /* Pages given since the last bring-up, and those that came back. */
    uint32_t pages_given, pages_back;
};

/* Prints text. */
void print(const char *text);
/* Prints a number that is not negative. */
void print_number(uint64_t number);
/* Ends the machine: 0 for success, 1 for a failure, 2 for an exception. */
_Noreturn void end(int status);

/* Nanoseconds since the machine began. */
uint64_t nanoseconds(void);

/* Bytes of the stack that were used, and how many it has. */
size_t stack_used(void);
size_t stack_size(void);

/* Finds, resets and enables the ConnectX cards of the root bus, `count` at most, and returns how many there are. Each gets pages for its
 * firmware from the memory that the program does not use. */
size_t find_cards(struct card *cards, size_t count);

/* What the machine calls when it starts. */
void firmware(void);

#endif
