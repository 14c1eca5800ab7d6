/* The address of a queue pair as `ibv_rc_pingpong` writes it: `LID:QPN:PSN:GID` in hexadecimal digits, 4, 6, 6 and 32. The GID is zero:
 * packets carry no global route. */
#ifndef ADDRESS_H
#define ADDRESS_H

#include <stdint.h>

struct address {
    uint16_t lid;
    uint32_t qp_num;
    /* First PSN that the queue pair sends. */
    uint32_t psn;
};

void print_address(const struct address *address);
/* Reads what print_address prints. Returns 0 if the text is something else. */
int parse_address(const char *text, struct address *address);

#endif
