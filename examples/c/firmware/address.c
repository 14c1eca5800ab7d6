#include "address.h"

#include "machine.h"

void print_address(const struct address *address)
{
    print_hex(address->lid, 4);
    print(":");
    print_hex(address->qp_num, 6);
    print(":");
    print_hex(address->psn, 6);
    print(":");
    print_hex(0, 32);
}

/* Reads `digits` digits and the character behind them. Returns what follows, or NULL. A number of more than 8 digits must be 0. */
static const char *parse_hex(const char *text, unsigned digits, char behind, uint32_t *number)
{
    *number = 0;
    for (; digits > 0; digits--, text++) {
        uint32_t digit;
        if (*text >= '0' && *text <= '9')
            digit = (uint32_t)(*text - '0');
        else if (*text >= 'a' && *text <= 'f')
            digit = (uint32_t)(*text - 'a') + 10;
        else
            return NULL;
        if (*number >> 28 != 0)
            return NULL;
        *number = *number << 4 | digit;
    }
    return *text == behind ? text + 1 : NULL;
}

int parse_address(const char *text, struct address *address)
{
    uint32_t lid, gid;
    text = parse_hex(text, 4, ':', &lid);
    if (text != NULL)
        text = parse_hex(text, 6, ':', &address->qp_num);
    if (text != NULL)
        text = parse_hex(text, 6, ':', &address->psn);
    if (text != NULL)
        text = parse_hex(text, 32, 0, &gid);
    address->lid = (uint16_t)lid;
    return text != NULL && gid == 0;
}
