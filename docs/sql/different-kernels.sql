-- Which kernels do only some ranks run?
select kernel, count(distinct rank) as ranks, min(rank) as of_rank, count(*) as launches
from kernels
where kernel is not null
group by kernel
having count(distinct rank) < (select count(distinct rank) from runs)
order by ranks, kernel;
