/* The ConnectX cards of the root bus. */
#ifndef PCI_H
#define PCI_H

#include <stddef.h>
#include <stdint.h>

/* A card that may be used. */
struct function {
    volatile uint8_t *bar;
    size_t bar_size;
};

/* Finds, resets and enables the ConnectX cards of the root bus, `count` at most, and returns how many there are. Their completions raise
 * interrupts (interrupts.h). */
size_t find_cards(struct function *functions, size_t count);

#endif
