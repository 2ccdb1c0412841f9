"""Teachers: frozen networks whose features a student learns."""

from veca.teacher.find import TEACHERS as TEACHERS
from veca.teacher.find import find_teacher as find_teacher
from veca.teacher.function import FunctionTeacher as FunctionTeacher
from veca.teacher.teacher import Targets as Targets
from veca.teacher.teacher import Teacher as Teacher
from veca.teacher.teacher import TeacherError as TeacherError
from veca.teacher.untrained import random_teacher as random_teacher
