/* QEMU's `virt` for RISC-V. The addresses are those of QEMU's hw/riscv/virt.c; another machine is told them by its device tree. */
#include "machine.h"

#define UART 0x10000000u
#define TEST 0x00100000u
#define ECAM 0x30000000u
/* Where BARs go: a window of 1 GiB. */
#define BARS 0x40000000u
#define BARS_END 0x80000000u
#define RAM_END 0x90000000u
/* Ticks of the `time` register take 100 ns. */
#define NANOSECONDS_OF_A_TICK 100

/* Of the linker script. */
extern uint8_t stack_bottom[], stack_top[], image_end[];

/* Bytes of the stack that nobody has used yet. */
#define UNUSED 0xa5

static volatile uint8_t *bytes_at(uint64_t address)
{
    return (volatile uint8_t *)(uintptr_t)address;
}

static volatile uint16_t *word_at(uint64_t address)
{
    return (volatile uint16_t *)(uintptr_t)address;
}

static volatile uint32_t *long_at(uint64_t address)
{
    return (volatile uint32_t *)(uintptr_t)address;
}

void print(const char *text)
{
    volatile uint8_t *uart = bytes_at(UART);
    for (; *text != 0; text++) {
        /* Until the transmitter is empty (16550, line status). */
        while ((uart[5] & 0x20) == 0)
            ;
        uart[0] = (uint8_t)*text;
    }
}

void print_number(uint64_t number)
{
    char text[21];
    size_t at = sizeof text - 1;
    text[at] = 0;
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    print(text + at);
}

void end(int status)
{
    *long_at(TEST) = status == 0 ? 0x5555u : 0x3333u | (uint32_t)status << 16;
    for (;;)
        __asm__ volatile("wfi");
}

uint64_t nanoseconds(void)
{
    uint64_t ticks;
    __asm__ volatile("rdtime %0" : "=r"(ticks));
    return ticks * NANOSECONDS_OF_A_TICK;
}

static void pause_for(uint64_t milliseconds)
{
    uint64_t end_of_it = nanoseconds() + milliseconds * 1000000;
    while (nanoseconds() < end_of_it)
        ;
}

size_t stack_used(void)
{
    const volatile uint8_t *at = stack_bottom;
    while (at < stack_top && *at == UNUSED)
        at++;
    return (size_t)(stack_top - at);
}

size_t stack_size(void)
{
    return (size_t)(stack_top - stack_bottom);
}

/* A register of the configuration space of a function of the root bus. */
static uint64_t configuration(unsigned device, unsigned offset)
{
    return ECAM + ((uint64_t)device << 15) + offset;
}

/* Resets a function by itself (FLR): it may still run for a program before this one. Returns 0 if it cannot be reset. */
static int reset(unsigned device)
{
    unsigned at = *bytes_at(configuration(device, 0x34)) & 0xfcu, left;
    uint64_t end_of_it;
    for (left = 48; at != 0 && left > 0; left--) {
        /* The PCI Express capability, and FLR among its device capabilities. */
        if (*bytes_at(configuration(device, at)) == 0x10 && (*long_at(configuration(device, at + 4)) & 1u << 28) != 0) {
            *word_at(configuration(device, at + 8)) |= 1u << 15;
            pause_for(100);
            end_of_it = nanoseconds() + 10000000000u;
            while (*word_at(configuration(device, 0)) != 0x15b3)
                if (nanoseconds() >= end_of_it)
                    return 0;
            return 1;
        }
        at = *bytes_at(configuration(device, at + 1)) & 0xfcu;
    }
    return 0;
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

size_t find_cards(struct card *cards, size_t count)
{
    uint64_t free = BARS, place, size;
    uint64_t page = ((uint64_t)(uintptr_t)image_end + 4095) & ~(uint64_t)4095;
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
        if (page + FIRMWARE_PAGES * 4096ull > RAM_END || !reset(device))
            continue;
        size = place_bar(device, free, &place);
        if (size == 0)
            continue;
        free = place + size;
        cards[found].bar = bytes_at(place);
        cards[found].bar_size = size;
        cards[found].first_page = page;
        page += FIRMWARE_PAGES * 4096ull;
        /* Memory space and bus mastering. */
        *word_at(configuration(device, 4)) |= 6;
        found++;
    }
    return found;
}

/* The start-up code calls these two (examples/firmware/board/src/arch/riscv64/start.S). */
void board_start(void);
void board_trap(uint64_t cause, uint64_t address, uint64_t value);

void board_start(void)
{
    volatile uint8_t *at = stack_bottom;
    const volatile uint8_t *frame;
    /* What lies below this function's frame. */
    __asm__ volatile("mv %0, sp" : "=r"(frame));
    for (; at < frame; at++)
        *at = UNUSED;
    firmware();
}

void board_trap(uint64_t cause, uint64_t address, uint64_t value)
{
    print("failed: trap ");
    print_number(cause);
    print(" at ");
    print_number(address);
    print(", value ");
    print_number(value);
    print("\n");
    end(2);
}
