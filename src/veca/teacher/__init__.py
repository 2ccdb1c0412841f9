"""Teachers: frozen networks whose features a student learns."""

from veca.teacher.registry import TEACHERS as TEACHERS
from veca.teacher.registry import load_teacher as load_teacher
from veca.teacher.registry import random_teacher as random_teacher
from veca.teacher.teacher import FunctionTeacher as FunctionTeacher
from veca.teacher.teacher import Targets as Targets
from veca.teacher.teacher import Teacher as Teacher
from veca.teacher.teacher import TeacherError as TeacherError
