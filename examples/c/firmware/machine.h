/* QEMU's `virt` for RISC-V: serial line, time, stack, power-off. Another board has another machine.c. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* The registers at an address. */
static inline volatile uint8_t *bytes_at(uint64_t address)
{
    return (volatile uint8_t *)(uintptr_t)address;
}

static inline volatile uint16_t *word_at(uint64_t address)
{
    return (volatile uint16_t *)(uintptr_t)address;
}

static inline volatile uint32_t *long_at(uint64_t address)
{
    return (volatile uint32_t *)(uintptr_t)address;
}

static inline volatile uint64_t *quad_at(uint64_t address)
{
    return (volatile uint64_t *)(uintptr_t)address;
}

/* Prints text. */
void print(const char *text);
/* Prints a number that is not negative. */
void print_number(uint64_t number);
/* Prints the low `digits` hexadecimal digits of a number. */
void print_hex(uint64_t number, unsigned digits);
/* Reads a line without its end into `size` bytes, with a 0 behind it. Returns 0 if none came in that time, or a longer one. */
int read_line(char *text, size_t size, uint64_t nanoseconds);
/* Ends the machine: 0 for success, 1 for a failure, 2 for an exception. */
_Noreturn void end(int status);

/* Nanoseconds since the machine began. */
uint64_t nanoseconds(void);

/* Bytes of the stack that were used, and how many it has. */
size_t stack_used(void);
size_t stack_size(void);

/* The memory that the program does not use: its first address, a multiple of 4096, and the one behind it. */
uint64_t free_memory(void);
uint64_t memory_end(void);

/* What the machine calls when it starts. */
void firmware(void);

#endif
