/* A card that is up, with a registered buffer and one queue pair. */
#ifndef NODE_H
#define NODE_H

#include "address.h"
#include "bareverbs.h"
#include "card.h"

struct node {
    struct card card;
    bv_device *device;
    bv_port_attr port;
    bv_pd pd;
    bv_cq cq;
    bv_qp qp;
    bv_mr mr;
    uint8_t *buffer;
    /* Where the peer reaches the queue pair. */
    struct address address;
    /* Whether it sleeps until an interrupt says that a completion came. */
    int events;
    /* Interrupts that ended a sleep. */
    uint32_t interrupts;
    /* A completion gives an event. */
    int armed;
    _Alignas(BV_STORAGE_ALIGN) uint8_t storage[BV_STORAGE_SIZE];
};

/* Finds the cards of the machine, which must be as many as nodes. */
void find_nodes(struct node *nodes, size_t count);
/* Brings a card up and makes its objects. `memory` is BV_MEMORY_SIZE bytes, aligned to 4096; `buffer` may be written by the peer. */
void bring_up(struct node *node, uint8_t *memory, uint8_t *buffer, size_t buffer_size);
/* Takes the queue pair to RTS, towards that of the peer, with the times of `ibv_rc_pingpong`. `path_mtu` is a code, 1 to 5. */
void connect(struct node *node, const struct address *peer, uint32_t path_mtu);
/* Returns the next completion, which must be a success. */
bv_wc next_completion(struct node *node, uint64_t timeout);
/* Takes the card down: every object goes with it. */
void take_down(struct node *node);
/* Ends the machine, with the size of the stack that was used. */
_Noreturn void done(void);

#endif
