/* Two threads on one device: one of two calls at a time is done, the other is refused and changes nothing. */
#include <pthread.h>

#include "check.h"

#define ROUNDS 500
/* Rounds after which two threads should have met. */
#define MANY 1000000

static struct node *node;

/* Calls that were refused, of both threads. */
static unsigned refused;

/* Makes and destroys domains until the two have met. */
static void *one_thread(void *unused)
{
    int i;
    (void)unused;
    for (i = 0; i < ROUNDS || (__atomic_load_n(&refused, __ATOMIC_RELAXED) == 0 && i < MANY); i++) {
        bv_pd pd;
        int32_t result;
        while ((result = bv_alloc_pd(node->device, &pd)) == -BV_EBUSY)
            __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
        CHECK(result == 0);
        while ((result = bv_dealloc_pd(node->device, pd)) == -BV_EBUSY)
            __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
        CHECK(result == 0);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    int i;
    bv_pd pds[BV_MAX_PD];
    node = add_node(bv_sim_world_new(), 1);
    bring_up(node);
    for (i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, one_thread, NULL) == 0);
    for (i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(refused > 0);
    /* Nothing is left over. */
    for (i = 0; i + 1 < BV_MAX_PD; i++)
        OK(node, bv_alloc_pd(node->device, &pds[i]));
    OK(node, bv_take_down(node->device));
    CHECK(bv_sim_findings(node->host) == 0);
    puts("threads: ok");
    return 0;
}
