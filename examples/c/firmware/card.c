/* What bv_platform asks for. No barrier, wait or extent: the CPU's barriers, no pauses, and the card sees the CPU's addresses. */
#include "card.h"

#include "machine.h"

static uint32_t read32(void *context, size_t offset)
{
    return *(volatile uint32_t *)(((struct card *)context)->function.bar + offset);
}

static void write32(void *context, size_t offset, uint32_t value)
{
    *(volatile uint32_t *)(((struct card *)context)->function.bar + offset) = value;
}

static void write64(void *context, size_t offset, uint64_t value)
{
    *(volatile uint64_t *)(((struct card *)context)->function.bar + offset) = value;
}

static uint64_t now(void *context)
{
    (void)context;
    return nanoseconds();
}

static int32_t page_alloc(void *context, uint64_t *device_addr)
{
    struct card *card = context;
    uint32_t tried;
    for (tried = 0; tried < FIRMWARE_PAGES; tried++) {
        uint32_t page = card->next;
        card->next = (page + 1) % FIRMWARE_PAGES;
        if (!card->given[page]) {
            card->given[page] = 1;
            card->pages_given++;
            *device_addr = card->first_page + 4096ull * page;
            return 0;
        }
    }
    return 1;
}

static int32_t page_free(void *context, uint64_t device_addr)
{
    struct card *card = context;
    uint64_t offset = device_addr - card->first_page;
    /* The address comes from the card. */
    if (device_addr < card->first_page || offset % 4096 != 0 || offset / 4096 >= FIRMWARE_PAGES || !card->given[offset / 4096])
        return 1;
    card->given[offset / 4096] = 0;
    card->pages_back++;
    return 0;
}

static void page_free_all(void *context)
{
    struct card *card = context;
    uint32_t page;
    for (page = 0; page < FIRMWARE_PAGES; page++)
        card->given[page] = 0;
    card->next = card->pages_given = card->pages_back = 0;
}

int give_pages(struct card *card, size_t before)
{
    card->first_page = free_memory() + before * FIRMWARE_PAGES * 4096ull;
    return card->first_page + FIRMWARE_PAGES * 4096ull <= memory_end();
}

bv_platform platform_of(struct card *card, uint8_t *memory)
{
    return (bv_platform){
        .context = card,
        .registers_size = card->function.bar_size,
        .read32 = read32,
        .write32 = write32,
        .write64 = write64,
        .now = now,
        .memory = memory,
        .memory_size = BV_MEMORY_SIZE,
        .memory_device_addr = (uintptr_t)memory,
        .page_alloc = page_alloc,
        .page_free = page_free,
        .page_free_all = page_free_all,
    };
}
