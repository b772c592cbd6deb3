/* Numbers that look random and are the same for the same seed (splitmix64). */
#ifndef RANDOM_H_
#define RANDOM_H_

#include <stdbool.h>
#include <stdint.h>

static inline uint64_t random_next(uint64_t* seed) {
  uint64_t mixed = *seed += 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
  return mixed ^ mixed >> 31;
}

static inline uint32_t random_below(uint64_t* seed, uint32_t bound) {
  return (uint32_t)(random_next(seed) % bound);
}

static inline bool one_in(uint64_t* seed, uint32_t bound) { return random_below(seed, bound) == 0; }

#endif /* RANDOM_H_ */
