/* Simulated devices for C programs of one process: libbareverbs_c_sim.a, which has the verbs of bareverbs.h too.
 *
 * A world has hosts, each with a device, and a wire between them. Time moves when a program reads a host's clock, waits on it
 * (the callbacks `now` and `wait` of its platform), or calls bv_sim_advance: one thread is enough. All of it stays until the
 * process ends.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef BAREVERBS_SIM_H
#define BAREVERBS_SIM_H

#include "bareverbs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bv_sim_world bv_sim_world;
typedef struct bv_sim_host bv_sim_host;

/* Makes a world without a host. */
bv_sim_world *bv_sim_world_new(void);
/* Adds a host whose device gets this LID, and fills in the platform of its machine; NULL if there cannot be such a device. */
bv_sim_host *bv_sim_add(bv_sim_world *world, uint16_t lid, bv_platform *platform);
/* The same with an Ethernet port, whose MAC address is made of the number. */
bv_sim_host *bv_sim_add_ethernet(bv_sim_world *world, uint16_t number, bv_platform *platform);
/* Allocates zeroed memory that program and device see, and writes its address for the device unless that pointer is NULL. It is
   never freed; NULL if size is 0, or the process gets no memory. */
void *bv_sim_alloc(bv_sim_host *host, size_t size, uint64_t *device_addr);
/* Lets time pass for every host of the world. */
void bv_sim_advance(bv_sim_world *world, uint64_t nanoseconds);

/* Takes the device out of its slot. */
void bv_sim_remove(bv_sim_host *host);
/* Pulls the cable (0), or plugs it (1). */
void bv_sim_set_link(bv_sim_host *host, int32_t plugged);
/* Mistakes of the driver that the device has found. */
size_t bv_sim_findings(bv_sim_host *host);

/* Callbacks of a platform, for bv_sim_calls. */
enum {
    BV_SIM_READ32,
    BV_SIM_WRITE32,
    BV_SIM_WRITE64,
    BV_SIM_BARRIER,
    BV_SIM_NOW,
    BV_SIM_WAIT,
    BV_SIM_PAGE_ALLOC,
    BV_SIM_PAGE_FREE,
    BV_SIM_PAGE_FREE_ALL,
    BV_SIM_EXTENT
};
/* How often a callback was called. */
uint64_t bv_sim_calls(bv_sim_host *host, size_t callback);
/* Lets page_alloc find as many more pages, and no others. */
void bv_sim_limit_pages(bv_sim_host *host, uint32_t pages);
/* Lets the next wait call bv_take_down on the device, which no callback may. */
void bv_sim_call_back(bv_sim_host *host, bv_device *device);
/* What that returned; 0 before. */
int32_t bv_sim_called_back(bv_sim_host *host);

#ifdef __cplusplus
}
#endif

#endif
