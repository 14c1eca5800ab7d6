/* Functions of the root bus of QEMU's `virt` for RISC-V: reset, BAR0, MSI-X. The addresses are those of QEMU's hw/riscv/virt.c. */
#include "pci.h"

#include "interrupts.h"
#include "machine.h"

#define ECAM 0x30000000u
/* Where BARs go: a window of 1 GiB. */
#define BARS 0x40000000u
#define BARS_END 0x80000000u
/* Capabilities (PCI Local Bus Specification, appendix H). */
#define PCI_EXPRESS 0x10
#define MSIX 0x11
/* Vectors that the driver uses: 0 for all but completions, 1 for completions. */
#define VECTORS 2

/* A register of the configuration space of a function. */
static uint64_t configuration(unsigned device, unsigned offset)
{
    return ECAM + ((uint64_t)device << 15) + offset;
}

/* The offset of a capability; 0 if the function has none. */
static unsigned capability(unsigned device, uint8_t id)
{
    unsigned at = *bytes_at(configuration(device, 0x34)) & 0xfcu, left;
    for (left = 48; at != 0 && left > 0; left--) {
        if (*bytes_at(configuration(device, at)) == id)
            return at;
        at = *bytes_at(configuration(device, at + 1)) & 0xfcu;
    }
    return 0;
}

static void pause_for(uint64_t milliseconds)
{
    uint64_t end_of_it = nanoseconds() + milliseconds * 1000000;
    while (nanoseconds() < end_of_it)
        ;
}

/* Resets a function by itself (FLR): it may still run for a program before this one. Returns 0 if it cannot be reset. */
static int reset(unsigned device)
{
    unsigned at = capability(device, PCI_EXPRESS);
    uint64_t end_of_it;
    /* FLR among the device capabilities. */
    if (at == 0 || (*long_at(configuration(device, at + 4)) & 1u << 28) == 0)
        return 0;
    *word_at(configuration(device, at + 8)) |= 1u << 15;
    pause_for(100);
    end_of_it = nanoseconds() + 10000000000u;
    while (*word_at(configuration(device, 0)) != 0x15b3)
        if (nanoseconds() >= end_of_it)
            return 0;
    return 1;
}

/* Places BAR0 at an address or above, and returns its size; 0 if it is not there. */
static uint64_t place_bar(unsigned device, uint64_t from, uint64_t *place)
{
    volatile uint32_t *bar = long_at(configuration(device, 0x10));
    uint64_t size;
    /* A memory BAR of 64 bits. */
    if ((bar[0] & 7) != 4)
        return 0;
    bar[0] = bar[1] = UINT32_MAX;
    size = ~((uint64_t)bar[1] << 32 | (bar[0] & ~15u)) + 1;
    *place = (from + size - 1) & ~(size - 1);
    if (size == 0 || size > BARS_END - BARS || *place + size > BARS_END)
        return 0;
    bar[0] = (uint32_t)*place;
    bar[1] = (uint32_t)(*place >> 32);
    return size;
}

/* Lets the function raise interrupts: number 1 with its vector 0, number 2 with vector 1. One without MSI-X, or with its table in another
 * BAR, raises none: it can be polled. */
static void set_messages(unsigned device, const struct function *function)
{
    unsigned at = capability(device, MSIX), vector;
    uint32_t offset;
    if (at == 0)
        return;
    offset = *long_at(configuration(device, at + 4));
    if ((offset & 7) != 0 || offset + VECTORS * 16ull > function->bar_size)
        return;
    for (vector = 0; vector < VECTORS && vector <= (*word_at(configuration(device, at + 2)) & 0x7ffu); vector++) {
        volatile uint32_t *entry = (volatile uint32_t *)(function->bar + offset + vector * 16);
        struct message message = open_interrupt(vector + 1);
        entry[0] = (uint32_t)message.address;
        entry[1] = (uint32_t)(message.address >> 32);
        entry[2] = message.data;
        entry[3] &= ~1u;
    }
    *word_at(configuration(device, at + 2)) = (uint16_t)((*word_at(configuration(device, at + 2)) & 0x3fffu) | 0x8000u);
}

size_t find_cards(struct function *functions, size_t count)
{
    uint64_t free = BARS, place, size;
    size_t found = 0;
    unsigned device;
    /* Nothing reaches memory from here on. */
    for (device = 0; device < 32; device++)
        if (*word_at(configuration(device, 0)) != 0xffff)
            *word_at(configuration(device, 4)) &= (uint16_t)~4u;
    for (device = 0; device < 32 && found < count; device++) {
        /* Mellanox, an InfiniBand controller. */
        if (*word_at(configuration(device, 0)) != 0x15b3 || *word_at(configuration(device, 10)) != 0x0207)
            continue;
        if (!reset(device))
            continue;
        size = place_bar(device, free, &place);
        if (size == 0)
            continue;
        free = place + size;
        functions[found].bar = bytes_at(place);
        functions[found].bar_size = size;
        /* Memory space and bus mastering. */
        *word_at(configuration(device, 4)) |= 6;
        set_messages(device, &functions[found]);
        found++;
    }
    return found;
}
