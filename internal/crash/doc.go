// Package crash has no code but its tests, which see servers from outside: real processes, called over Connect by
// callers who retry with the same key. Servers and Postgres are killed, connections break, databases move; then nothing
// that was acknowledged may be lost, and nothing may have happened twice.
package crash
