/* QEMU's `virt` for RISC-V. The addresses are those of QEMU's hw/riscv/virt.c; another machine is told them by its device tree. */
#include "machine.h"

#define UART 0x10000000u
#define TEST 0x00100000u
#define RAM_END 0x90000000u
/* Ticks of the `time` register take 100 ns. */
#define NANOSECONDS_OF_A_TICK 100

/* Of the linker script. */
extern uint8_t stack_bottom[], stack_top[], image_end[];

/* Bytes of the stack that nobody has used yet. */
#define UNUSED 0xa5

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

void print_hex(uint64_t number, unsigned digits)
{
    char digit[2] = {0};
    while (digits-- > 0) {
        digit[0] = "0123456789abcdef"[digits < 16 ? number >> 4 * digits & 15 : 0];
        print(digit);
    }
}

int read_line(char *text, size_t size, uint64_t timeout)
{
    const volatile uint8_t *uart = bytes_at(UART);
    uint64_t end_of_it = nanoseconds() + timeout;
    size_t length = 0;
    while (nanoseconds() < end_of_it) {
        uint8_t byte;
        /* Whether a byte is there (16550, line status). */
        if ((uart[5] & 1) == 0)
            continue;
        byte = uart[0];
        if (byte != '\r' && byte != '\n') {
            if (length + 1 >= size)
                return 0;
            text[length++] = (char)byte;
        } else if (length != 0) {
            text[length] = 0;
            return 1;
        }
    }
    return 0;
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

uint64_t free_memory(void)
{
    return ((uint64_t)(uintptr_t)image_end + 4095) & ~(uint64_t)4095;
}

uint64_t memory_end(void)
{
    return RAM_END;
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
