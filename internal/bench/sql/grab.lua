-- One buyer's grab. KEYS: units that are left, orders by buyer, winners to insert. ARGV: the buyer.
local order = redis.call('HGET', KEYS[2], ARGV[1])
if order then
  return {'2', order}
end
local left = tonumber(redis.call('GET', KEYS[1]))
if left <= 0 then
  return {'0', ''}
end
redis.call('DECR', KEYS[1])
order = KEYS[1] .. '-' .. left
redis.call('HSET', KEYS[2], ARGV[1], order)
redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. order)
return {'1', order}
