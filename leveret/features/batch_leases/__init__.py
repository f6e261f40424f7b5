"""Batch leases: a job takes messages of a queue by the batch, reads them in parallel, settles all.

rules          names, numbers, ranges and limits, and what refuses a request
lease_book     what a holder has leased, by the number of the lease
leasing        one lease in the making: a consumer of the queue that takes up to a limit
holder         one holder: a consumer, its leases, and the time after which it is given up
batch_leases   the holders of a node
leased_read    a range read of exactly what is leased
"""
