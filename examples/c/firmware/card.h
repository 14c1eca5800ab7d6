/* A card as the library sees it: registers, time, and pages for its firmware. */
#ifndef CARD_H
#define CARD_H

#include "bareverbs.h"
#include "pci.h"

/* Pages of a card's firmware, at most: 64 MiB. A ConnectX-4 Lx wanted 12,874 from Linux. */
#define FIRMWARE_PAGES 16384

/* A card, and the pages that its firmware has. */
struct card {
    struct function function;
    uint64_t first_page;
    uint8_t given[FIRMWARE_PAGES];
    /* Where the search for a free page begins. */
    uint32_t next;
    /* Pages given since the last bring-up, and those that came back. */
    uint32_t pages_given, pages_back;
};

/* Gives a card its pages: those of the memory that the program does not use, behind those of the `before` cards before it. Returns 0 if
 * the memory has no room for them. */
int give_pages(struct card *card, size_t before);
/* The platform of a card. `memory` is BV_MEMORY_SIZE bytes for its queues. */
bv_platform platform_of(struct card *card, uint8_t *memory);

#endif
